//! Merged lists. Without a limit all physical clusters are read to their end, at the same time. With a limit they are
//! read in the order of their names, and a page may have fewer items than its limit.

use std::{sync::Arc, time::Duration};

use futures::future::join_all;
use http::Response;
use portolan_types::Status;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::{
    Body,
    encode::{self, NegotiatedForm, ObjectForm, ResponseFormat},
};

use super::{
    client::{MemberQuery, PageBody, PageError, PaneClient, garbled, unreachable},
    items::{GarbledAnswer, MemberItem, is_version},
    members::{PaneMember, PaneMembers},
    raw::quoted,
    tables::{MemberTable, TableColumns},
    tokens::{MemberVersions, PanePosition},
    total_failure, warn,
};

/// Objects per page of a physical cluster.
const PAGE: usize = 500;
/// Most bytes of a page; a larger one is read again with a lower limit.
const MAX_PAGE: usize = 4 * 1024 * 1024;
/// Longest kind, in bytes.
const MAX_KIND: usize = 128;
/// Most pages of one physical cluster.
const MAX_PAGES: usize = 2000;
/// Longest time for all pages of one physical cluster.
const MAX_TIME: Duration = Duration::from_secs(25);
/// Physical clusters that are asked ahead for one page.
const AHEAD: usize = 16;
/// Longest answer that is parsed for another form than compact JSON, in bytes.
const MAX_PARSED: usize = 1024 * 1024;

/// Page of a physical cluster.
pub(super) struct MemberPage {
    body: PageBody,
    pub(super) version: String,
    /// Its continue token; empty at the end.
    pub(super) next: String,
    kind: String,
    count: usize,
}

/// Parsed page.
#[derive(Deserialize)]
struct ListText<'a> {
    kind: String,
    metadata: ListMetadata,
    #[serde(borrow, default)]
    items: Option<Vec<&'a RawValue>>,
    #[serde(borrow, default)]
    rows: Option<Vec<&'a RawValue>>,
}

#[derive(Deserialize)]
struct ListMetadata {
    #[serde(rename = "resourceVersion", default)]
    version: String,
    #[serde(rename = "continue", default)]
    next: String,
}

/// Pages that go into one answer.
struct PaneList {
    /// Index of the physical cluster, and its page, in order.
    pages: Vec<(usize, MemberPage)>,
    versions: MemberVersions,
    next: Option<PanePosition>,
}

impl MemberPage {
    /// Parses the parts of a page that the merge needs.
    ///
    /// # Errors
    /// 502 for text that is not a list, or that has items which cannot be shown.
    fn new(body: PageBody, is_table: bool) -> Result<Self, Status> {
        let text: ListText<'_> = serde_json::from_str(body.text()?).map_err(|error| garbled(&error.to_string()))?;
        let is_list = (text.kind == "Table") == is_table && (is_table || text.kind.ends_with("List"));
        if !is_list || text.kind.len() > MAX_KIND || !is_version(&text.metadata.version) {
            return Err(garbled("it is not a list with a resourceVersion"));
        }
        let count = text.items.as_ref().or(text.rows.as_ref()).map_or(0, Vec::len);
        let (kind, ListMetadata { version, next }) = (text.kind, text.metadata);
        let page = Self { body, version, next, kind, count };
        page.check(is_table).map_err(|error| garbled(&error.0))?;
        Ok(page)
    }

    /// Checks that all items can be shown, so that a malformed one costs only the items of its physical cluster.
    fn check(&self, is_table: bool) -> Result<(), GarbledAnswer> {
        let text = self.body.text().map_err(|error| GarbledAnswer(error.message().to_owned()))?;
        if is_table {
            let (table, mut columns) = (MemberTable::parse(text)?, TableColumns::default());
            columns.learn(0, &table)?;
            return table.rows.iter().flatten().try_for_each(|row| columns.row((0, ""), row.get(), None).map(drop));
        }
        let list: ListText<'_> = serde_json::from_str(text)?;
        list.items.iter().flatten().try_for_each(|item| MemberItem::parse(item.get()).map(drop))
    }

    /// Returns the texts of its objects or rows.
    ///
    /// # Errors
    /// 502 for text that is not a list.
    pub(super) fn items(&self) -> Result<Vec<&RawValue>, Status> {
        let text: ListText<'_> =
            serde_json::from_str(self.body.text()?).map_err(|error| garbled(&error.to_string()))?;
        Ok(text.items.or(text.rows).unwrap_or_default())
    }

    /// Returns the page as a table.
    pub(super) fn table(&self) -> Result<MemberTable<'_>, Status> {
        MemberTable::parse(self.body.text()?).map_err(|error| garbled(&error.0))
    }
}

/// Reads one page of a physical cluster, with a lower limit if it is too large.
///
/// # Errors
/// The failure of the physical cluster; 413 for a single object that is too large.
pub(super) async fn read_page(
    client: &PaneClient,
    member: &PaneMember,
    query: impl Fn() -> MemberQuery,
    limit: usize,
) -> Result<MemberPage, Status> {
    let mut limit = limit.min(PAGE);
    loop {
        match client.page(member, &query().with("limit", &limit.to_string()), MAX_PAGE).await {
            Ok(body) => return MemberPage::new(body, client.is_table),
            Err(PageError::TooLarge(_)) if limit > 1 => limit = limit.div_ceil(4).min(limit - 1),
            Err(PageError::TooLarge(why) | PageError::Failed(why)) => return Err(why),
        }
    }
}

/// Answers a list.
pub(super) async fn answer(
    client: &Arc<PaneClient>,
    members: PaneMembers,
    form: NegotiatedForm,
) -> Result<Response<Body>, Status> {
    let call = &client.call;
    let asked = MemberVersions::decode(call.query.text("resourceVersion"))?;
    let limit = call.query.number("limit")?.and_then(|limit| usize::try_from(limit).ok()).filter(|limit| *limit > 0);
    let token = Some(call.query.text("continue")).filter(|text| !text.is_empty());
    let position = token.map(PanePosition::decode).transpose()?;
    let reader = ListReader { client, members: &members.members, asked: asked.unwrap_or_default() };
    let mut gaps = Vec::new();
    let list = match (limit, position) {
        (None, None) => reader.whole(&mut gaps).await,
        (limit, position) => reader.page(limit.unwrap_or(PAGE), position.unwrap_or_default(), &mut gaps).await?,
    };
    warn(call, &members, &gaps);
    if list.versions.is_empty() && !gaps.is_empty() {
        return Err(total_failure(gaps));
    }
    let text = encoded(client, &members.members, &list, form)?;
    finished(client, form, text)
}

/// Reader of the lists of physical clusters.
struct ListReader<'a> {
    client: &'a PaneClient,
    members: &'a [Arc<PaneMember>],
    /// Versions that the client asked for.
    asked: MemberVersions,
}

impl ListReader<'_> {
    fn query(&self, member: &PaneMember, token: &str) -> MemberQuery {
        let query = MemberQuery::selecting(&self.client.call);
        if !token.is_empty() {
            return query.with("continue", token);
        }
        match self.asked.get(&member.key) {
            None if self.client.call.query.text("resourceVersion") == "0" => query.with("resourceVersion", "0"),
            None => query,
            Some(version) => {
                let query = query.with("resourceVersion", version);
                match self.client.call.query.text("resourceVersionMatch") {
                    "" => query,
                    matching => query.with("resourceVersionMatch", matching),
                }
            }
        }
    }

    /// Reads all physical clusters to their end. Those that fail are gaps.
    async fn whole(&self, gaps: &mut Vec<(String, Status)>) -> PaneList {
        let all = join_all(self.members.iter().map(|member| self.all_pages(member))).await;
        let mut list = PaneList { pages: Vec::new(), versions: MemberVersions::default(), next: None };
        for (at, (read, member)) in all.into_iter().zip(self.members).enumerate() {
            match read {
                Err(why) => gaps.push((member.name.clone(), why)),
                Ok(pages) => {
                    let version = pages.first().map(|page| page.version.clone());
                    version.into_iter().for_each(|version| list.versions.set(member.key.clone(), version));
                    list.pages.extend(pages.into_iter().map(|page| (at, page)));
                }
            }
        }
        list
    }

    async fn all_pages(&self, member: &PaneMember) -> Result<Vec<MemberPage>, Status> {
        let reading = async {
            let (mut pages, mut token) = (Vec::new(), String::new());
            for _ in 0..MAX_PAGES {
                let page = read_page(self.client, member, || self.query(member, &token), PAGE).await?;
                token.clone_from(&page.next);
                pages.push(page);
                if token.is_empty() {
                    return Ok(pages);
                }
            }
            Err(garbled("its list does not end"))
        };
        let late = |_| unreachable("its list takes too long");
        tokio::time::timeout(MAX_TIME, reading).await.map_err(late)?
    }

    /// Reads one page of at most about `limit` items.
    ///
    /// # Errors
    /// 410 if the list cannot be continued.
    async fn page(
        &self,
        limit: usize,
        position: PanePosition,
        gaps: &mut Vec<(String, Status)>,
    ) -> Result<PaneList, Status> {
        let start = match position.member.as_str() {
            "" => 0,
            name => self.members.iter().position(|member| member.name == name).ok_or_else(|| {
                Status::expired(format!("physical cluster {name:?} is not part of the list any more"))
            })?,
        };
        let mut list = PaneList { pages: Vec::new(), versions: position.versions, next: None };
        let (mut token, mut count) = (position.token, 0);
        for ahead in (start..self.members.len()).step_by(AHEAD) {
            let asked = ahead..self.members.len().min(ahead + AHEAD);
            let reading = asked.clone().map(|at| {
                let token = if at == start { token.as_str() } else { "" };
                read_page(self.client, &self.members[at], move || self.query(&self.members[at], token), limit)
            });
            for (at, read) in asked.zip(join_all(reading).await) {
                let member = &self.members[at];
                let next = |token: String, versions: &MemberVersions| {
                    Some(PanePosition { versions: versions.clone(), member: member.name.clone(), token })
                };
                let page = match read {
                    // A list that has started is not continued if one physical cluster cannot deliver the remaining
                    // pages.
                    Err(why) if at == start && !token.is_empty() => return Err(why),
                    Err(why) => {
                        gaps.push((member.name.clone(), why));
                        continue;
                    }
                    Ok(page) => page,
                };
                if count > 0 && count + page.count > limit {
                    list.next = next(String::new(), &list.versions);
                    return Ok(list);
                }
                list.versions.set(member.key.clone(), page.version.clone());
                count += page.count;
                let rest = page.next.clone();
                list.pages.push((at, page));
                if !rest.is_empty() {
                    list.next = next(rest, &list.versions);
                    return Ok(list);
                }
            }
            token.clear();
        }
        Ok(list)
    }
}

/// Returns the text of the merged list.
fn encoded(
    client: &PaneClient,
    members: &[Arc<PaneMember>],
    list: &PaneList,
    form: NegotiatedForm,
) -> Result<String, Status> {
    let mut metadata = serde_json::json!({"resourceVersion": list.versions.encode()});
    if let Some(next) = &list.next {
        metadata["continue"] = next.encode()?.into();
    }
    let captures = &client.call.captures;
    let own = if captures.group.is_empty() {
        captures.version.clone()
    } else {
        format!("{}/{}", captures.group, captures.version)
    };
    let version = if form.form == ObjectForm::Object { own } else { form.meta.api_version().to_owned() };
    let is_table = form.form == ObjectForm::Table;
    let kind = match (is_table, list.pages.first()) {
        (true, _) => "Table",
        (false, Some((_, page))) => page.kind.as_str(),
        (false, None) => "List",
    };
    let mut out = format!(r#"{{"kind":{},"apiVersion":{},"metadata":{metadata}"#, quoted(kind), quoted(&version));
    if is_table {
        rows(members, list, &mut out)?
    } else {
        items(members, list, &mut out)?
    }
    out.push_str("]}\n");
    Ok(out)
}

fn items(members: &[Arc<PaneMember>], list: &PaneList, out: &mut String) -> Result<(), Status> {
    out.push_str(r#","items":["#);
    let mut separator = "";
    for (at, page) in &list.pages {
        for item in page.items()? {
            let item = MemberItem::parse(item.get()).map_err(|error| garbled(&error.0))?;
            out.push_str(separator);
            out.push_str(&item.shown(&members[*at].name));
            separator = ",";
        }
    }
    Ok(())
}

fn rows(members: &[Arc<PaneMember>], list: &PaneList, out: &mut String) -> Result<(), Status> {
    let mut columns = TableColumns::default();
    for (at, page) in &list.pages {
        columns.learn(*at, &page.table()?).map_err(|error| garbled(&error.0))?;
    }
    out.push_str(r#","columnDefinitions":"#);
    out.push_str(&columns.definitions());
    out.push_str(r#","rows":["#);
    let mut separator = "";
    for (at, page) in &list.pages {
        for row in page.table()?.rows.unwrap_or_default() {
            let row = columns.row((*at, &members[*at].name), row.get(), None).map_err(|error| garbled(&error.0))?;
            out.push_str(separator);
            out.push_str(&row);
            separator = ",";
        }
    }
    Ok(())
}

/// Returns the response. Indented JSON and YAML take a tree, which a long answer must not.
fn finished(client: &PaneClient, form: NegotiatedForm, text: String) -> Result<Response<Body>, Status> {
    let call = &client.call;
    let is_pretty = form.pretty || encode::wants_pretty(&call.headers, &call.query);
    let is_compact = form.media == ResponseFormat::Json && (!is_pretty || text.len() > MAX_PARSED);
    if is_compact {
        return Ok(encode::finish(200, "application/json", encode::full(text)));
    }
    if text.len() > MAX_PARSED {
        return Err(Status::new(portolan_types::Reason::NotAcceptable, "the list is too long for YAML: use limit"));
    }
    let tree = serde_json::from_str(&text).map_err(|error| garbled(&error.to_string()))?;
    let (media, bytes) = encode::own_kind(form.media, is_pretty, &tree)?;
    Ok(encode::finish(200, media, encode::full(bytes)))
}
