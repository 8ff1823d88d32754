//! Placement: the planner alone, beside Karmada's scheduling algorithm on the same objects, and decisions and plans of
//! a server.

mod beside_karmada;
mod plans;

use anyhow::Result;

use super::super::figures::Figure;
use super::super::subject::{BenchSubject, Lab};
use super::MeasureLimits;

pub(super) fn measure(subject: &BenchSubject, lab: &Lab, limits: &MeasureLimits) -> Result<Vec<Figure>> {
    let mut figures = beside_karmada::measure(lab.dir(), limits.placed)?;
    figures.extend(plans::measure(subject, limits.placed)?);
    Ok(figures)
}
