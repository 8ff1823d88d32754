//! One cert-manager, as it is released, that serves many workspaces through one flattened view, beside copies of it
//! that serve one workspace each.
//!
//! The provider's workspace has the chart of cert-manager, exports its definitions, and claims Secrets and Events. Each
//! tenant binds them and makes an issuer and a certificate, half of them by a cluster-scoped issuer. Only the program
//! that plays the tenants knows about workspaces.

mod operator;
mod tenants;

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use harness::clients::Clients;
use harness::poll;
use harness::portolan::Portolan;
use harness::report::CheckReport;
use harness::tools::Tools;

use super::workspaces::WorkspaceChecks;
use operator::{CertManager, OperatorPlace, memory_of};
use tenants::Tenants;

/// Workspace of the operator.
const PROVIDER: &str = "provider";
/// Time in which one more tenant is served.
const PATIENCE: Duration = Duration::from_secs(90);
/// Time in which each tenant gets its certificate, beside [`PATIENCE`] for all.
const EACH: Duration = Duration::from_secs(2);
/// Copies that run beside the one, at most.
const COPIES: usize = 20;

/// Size of the suite.
#[derive(clap::Args)]
pub(super) struct TenantCount {
    /// Suite flattened-view: workspaces that one operator serves. The long form has 1000.
    #[arg(long, value_name = "COUNT", default_value_t = 24, value_parser = parse_count)]
    tenants: usize,
    /// Suite flattened-view: copies of the operator whose memory is measured beside it. The long form has 20.
    #[arg(long, value_name = "COUNT", default_value_t = 2, value_parser = parse_count)]
    copies: usize,
}

fn parse_count(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|count| *count > 0).ok_or_else(|| format!("{text} is no number above 0"))
}

/// Runs all checks in order. Each builds on those before it.
pub(super) fn run(
    report: &mut CheckReport,
    size: &TenantCount,
    program: &Path,
    tools: &Tools,
    dir: &Path,
) -> Result<()> {
    let clients = Clients::build(super::clients::bundles(&[super::clients::PublishedClient::CertManager]))?;
    let server = Portolan::start(program, tools, dir)?;
    let scene = WorkspaceChecks::new(tools, dir, server)?;
    let place = OperatorPlace { scene: &scene, clients: &clients, dir };
    let count = size.tenants;
    let mut exported = None;
    report.check("flattened view: a provider exports the definitions of cert-manager", || {
        exported = Some(place.export()?);
        Ok(())
    });
    let Some(id) = exported else { return Ok(()) };
    let tenants = Tenants::new(&scene, count)?;
    if !report.check(&format!("flattened view: {count} workspaces bind them"), || tenants.bind()) {
        return Ok(());
    }
    let mut one = None;
    report.check("flattened view: one cert-manager starts, and takes its lease in the provider's workspace", || {
        let started = place.start_flattened(&id)?;
        poll::until("its lease is held", PATIENCE, || {
            started.check_alive()?;
            place.is_leader()
        })?;
        one = Some(started);
        Ok(())
    });
    let Some(one) = one else { return Ok(()) };
    report.check(&format!("flattened view: each of {count} workspaces gets its certificate"), || {
        served_all(&tenants, &one, count)
    });
    report.check("flattened view: no workspace has an object of another, and each Secret is its own", || {
        tenants.are_apart()
    });
    report.check("flattened view: a Secret that a tenant deletes comes back", || {
        tenants.renews(&|| one.check_alive(), PATIENCE)
    });
    report.check("flattened view: a workspace that binds later is served", || {
        let late = Tenants::one(&scene, "late")?;
        late.bind()?;
        late.order()?;
        late.until_served(&|| one.check_alive(), PATIENCE)
    });
    report.check("flattened view: a workspace that is deleted stops no service to the others", || {
        scene.delete("late")?;
        tenants.renews(&|| one.check_alive(), PATIENCE)
    });
    report.check("flattened view: kubectl sees one cluster", || place.is_one_cluster(&id, count));
    report.check(&format!("flattened view: memory beside {} copies", size.copies.min(COPIES)), || {
        compare(&place, &one, size)
    });
    report.check("flattened view: cert-manager ends when it is told to", || one.terminate());
    report.check("flattened view: the server is still the process that was started", || scene.server().check_alive());
    Ok(())
}

fn served_all(tenants: &Tenants, one: &CertManager, count: usize) -> Result<()> {
    let begun = Instant::now();
    tenants.order()?;
    tenants.until_served(&|| one.check_alive(), PATIENCE + EACH * count as u32)?;
    println!("  {count} certificates after {:.1} s", begun.elapsed().as_secs_f64());
    Ok(())
}

/// Prints the memory of the one and of its copies. Each copy serves an ordinary workspace with one certificate.
fn compare(place: &OperatorPlace<'_>, one: &CertManager, size: &TenantCount) -> Result<()> {
    let copies: Vec<_> = (0..size.copies.min(COPIES)).map(|number| place.start_copy(number)).collect::<Result<_>>()?;
    for (number, copy) in copies.iter().enumerate() {
        let tenants = Tenants::one(place.scene, &operator::copy_name(number))?;
        tenants.order()?;
        tenants.until_served(&|| copy.check_alive(), PATIENCE)?;
    }
    let all = copies.iter().map(memory_of).sum::<Result<f64>>()?;
    let (single, shared, count) = (all / copies.len() as f64, memory_of(one)?, size.tenants as f64);
    println!("  one cert-manager for {count} workspaces: {shared:.1} MiB of anonymous memory");
    println!("  a copy for one workspace: {single:.1} MiB (mean of {} measured)", copies.len());
    println!("  copies for {count} workspaces: {:.0} MiB (extrapolated)", single * count);
    copies.iter().try_for_each(CertManager::terminate)?;
    ensure!(shared < single * count || count < 2.0, "one for all takes no more than all of its copies");
    Ok(())
}
