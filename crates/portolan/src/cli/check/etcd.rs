//! Check of the members of an etcd, and of the store in it.

use portolan_store::{EtcdConfig, EtcdMember, EtcdMemberState, probe_etcd};

use super::CheckFinding;

/// Checks all members.
pub(super) fn look(etcd: &EtcdConfig) -> anyhow::Result<Vec<(&'static str, CheckFinding)>> {
    let members = crate::cli::runtime()?.block_on(probe_etcd(etcd));
    let mut findings: Vec<_> = members.iter().map(|member| ("etcd", of_member(member))).collect();
    findings.push(("store in etcd", of_store(&etcd.prefix, &members)));
    Ok(findings)
}

fn of_member(member: &EtcdMember) -> CheckFinding {
    let EtcdMember { url, state, .. } = member;
    let EtcdMemberState { version, bytes, has_leader, errors } = match state {
        // The error names the member itself.
        Err(why) => return CheckFinding::Bad(why.clone()),
        Ok(None) => {
            return CheckFinding::Good(format!("{url}: it answers, and tells more to users with the role root only"));
        }
        Ok(Some(state)) => state,
    };
    let mib = |bytes: u64| bytes >> 20;
    let told = format!("{url}: version {version}, {} MiB, {} of them in use", mib(bytes.0), mib(bytes.1));
    match errors.iter().map(|error| explained(error)).collect::<Vec<_>>() {
        errors if !errors.is_empty() => CheckFinding::Bad(format!("{told}; {}", errors.join("; "))),
        _ if !has_leader => {
            CheckFinding::Bad(format!("{told}; it knows no leader: most members must run and see each other"))
        }
        _ => CheckFinding::Good(told),
    }
}

/// Returns etcd's error with an action.
fn explained(error: &str) -> String {
    let help = if error.contains("NOSPACE") {
        ": no write is taken; compact and defragment etcd, or raise its --quota-backend-bytes, then etcdctl alarm disarm"
    } else if error.contains("CORRUPT") {
        ": the members do not hold the same; replace the one that is named, as etcd's documentation on data corruption tells"
    } else {
        ""
    };
    format!("it says {error:?}{help}")
}

fn of_store(prefix: &str, members: &[EtcdMember]) -> CheckFinding {
    let answers: Vec<_> = members.iter().map(|member| &member.store).collect();
    match answers.iter().find(|answer| answer.is_ok()).or(answers.first()) {
        Some(Ok(true)) => CheckFinding::Good(format!("there is one under {prefix}")),
        Some(Ok(false)) => CheckFinding::Good(format!("there is none yet under {prefix}, a server founds one")),
        Some(Err(_)) if members.iter().all(|member| member.state.is_err()) => {
            CheckFinding::Bad(format!("what is under {prefix} is not known: no member could be asked"))
        }
        Some(Err(why)) => CheckFinding::Bad(format!("what is under {prefix} cannot be used: {why}")),
        None => CheckFinding::Bad("no member was asked".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(state: EtcdMemberState) -> CheckFinding {
        of_member(&EtcdMember { url: "http://a:2379".into(), state: Ok(Some(state)), store: Ok(true) })
    }

    #[test]
    fn alarms_and_a_missing_leader_are_faults_with_what_to_do() {
        let well = EtcdMemberState {
            version: "3.6.0".into(),
            bytes: (3 << 20, 2 << 20),
            has_leader: true,
            errors: Vec::new(),
        };
        let CheckFinding::Good(text) = member(well.clone()) else { panic!("it is well") };
        assert_eq!(text, "http://a:2379: version 3.6.0, 3 MiB, 2 of them in use");
        for (errors, has_leader, words) in [
            (vec!["memberID:1 alarm:NOSPACE".to_owned()], true, "etcdctl alarm disarm"),
            (vec!["memberID:1 alarm:CORRUPT".to_owned()], true, "data corruption"),
            (vec!["etcdserver: something else".to_owned()], true, "something else"),
            (Vec::new(), false, "knows no leader"),
        ] {
            let CheckFinding::Bad(text) = member(EtcdMemberState { errors, has_leader, ..well.clone() }) else {
                panic!("{words}")
            };
            assert!(text.contains(words), "{text}");
        }
    }

    #[test]
    fn health_of_any_etcd_member_counts() {
        let asked = |store: Result<bool, &str>| EtcdMember {
            url: "http://a:2379".into(),
            state: if store == Err("gone") { Err("gone".into()) } else { Ok(None) },
            store: store.map_err(str::to_owned),
        };
        for (members, words) in [
            (vec![asked(Err("gone")), asked(Ok(true))], "there is one under /p/"),
            (vec![asked(Ok(false))], "there is none yet"),
            (vec![asked(Err("newer"))], "cannot be used: newer"),
            (vec![asked(Err("gone")), asked(Err("gone"))], "no member could be asked"),
        ] {
            let (CheckFinding::Good(text) | CheckFinding::Warning(text) | CheckFinding::Bad(text)) =
                of_store("/p/", &members);
            assert!(text.contains(words), "{text}");
        }
    }
}
