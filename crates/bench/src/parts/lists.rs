//! Lists in every form.

use anyhow::Result;

use super::super::figures::Figure;
use super::super::lists::ListForm;
use super::super::load::Until;
use super::super::objects::Size;
use super::super::subject::BenchSubject;
use super::MeasureLimits;

pub(super) fn measure(subject: &BenchSubject, limits: &MeasureLimits) -> Result<Vec<Figure>> {
    let (bench, objects) = (subject.bench(), limits.objects);
    super::runtime()?.block_on(async {
        bench.warm_up().await?;
        for (namespace, objects) in [("smaller", objects * 6 / 10), ("listed", objects)] {
            bench.make_namespace(namespace).await?;
            bench.create(namespace, 64, Size::SMALL, Until::Count(objects)).await?;
        }
        let whole = ListForm::json(objects * 1024);
        // Only a plain answer can be counted without a decoder.
        let packed = ListForm { encoding: "gzip", at_least: 0, ..whole };
        let few = ListForm { query: "?labelSelector=part%3D7", ..ListForm::json(objects / 100 * 1024) };
        let smaller = ListForm::json(objects * 6 / 10 * 1024);
        let name = |how: &str| format!("list of {objects} objects{how}");
        let mut figures =
            vec![bench.list("smaller", smaller).await?.cpu_millis(&format!("list of {} objects", objects * 6 / 10))];
        for (how, form) in [
            ("", whole),
            (", gzip", packed),
            (", of which a selector takes one in a hundred", few),
            (" as a table", ListForm::table(objects * 100)),
            (" in protobuf", ListForm::protobuf(objects * 1024)),
        ] {
            figures.push(bench.list("listed", form).await?.cpu_millis(&name(how)));
        }
        figures.push(bench.pages("listed", objects).await?.cpu_millis(&name(", in pages of 500")));
        Ok(figures)
    })
}
