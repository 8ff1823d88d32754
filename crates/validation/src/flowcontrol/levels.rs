//! Priority levels: the number of requests that are served concurrently.

use serde_json::{Value, json};

use super::super::{Errors, FieldError, internal, view::At};

const MAX_QUEUES: i64 = 10_000_000;
/// Bits of a hash of which queues are dealt.
const MAX_HASH_BITS: f64 = 60.0;
/// Annotation in which v1beta3 kept a zero.
const ROUND_TRIP: &str = "flowcontrol.k8s.io/v1beta3-preserve-zero-concurrency-shares";

pub(super) fn check(object: &At<'_>, errors: &mut Errors) {
    let (metadata, spec) = (object.child("metadata"), object.child("spec"));
    let name = metadata.text("name");
    if metadata.child("annotations").has(ROUND_TRIP) {
        errors.forbidden(metadata.path("annotations"), &format!("annotation '{ROUND_TRIP}' is forbidden"));
    }
    self::spec(name, &spec, errors);
    fixed(name, &spec, errors);
}

/// Checks that the built-in levels have their fixed spec.
fn fixed(name: &str, spec: &At<'_>, errors: &mut Errors) {
    let why = match name {
        "exempt" if spec.has("limited") || spec.text("type") != "Exempt" => {
            "spec of 'exempt' except the 'spec.exempt' field must equal the fixed value"
        }
        "catch-all" if *spec.value != catch_all() => "spec of 'catch-all' must equal the fixed value",
        _ => return,
    };
    let shown = internal::printed_value("PriorityLevelConfigurationSpec", spec.value);
    errors.push(FieldError::invalid_shown(&spec.path, &shown, why));
}

fn catch_all() -> Value {
    json!({"type": "Limited", "limited": {
        "nominalConcurrencyShares": 5, "lendablePercent": 0, "limitResponse": {"type": "Reject"}}})
}

fn spec(name: &str, spec: &At<'_>, errors: &mut Errors) {
    let kind = spec.text("type");
    if (name == "exempt") != (kind == "Exempt") {
        let why = "must be 'Exempt' if and only if `name` is 'exempt'";
        errors.invalid(spec.path("type"), &kind.into(), why);
    }
    match kind {
        "Exempt" => {
            spec.forbids(&["limited"], "must be nil if the type is not Limited", errors);
            if let Some(exempt) = spec.present("exempt") {
                shares(&exempt, errors);
                lendable(&exempt, errors);
            }
        }
        "Limited" => {
            spec.forbids(&["exempt"], "must be nil if the type is Limited", errors);
            match spec.present("limited") {
                None => errors.required(spec.path("limited"), "must not be empty when type is Limited"),
                Some(limited) => self::limited(&limited, errors),
            }
        }
        _ => spec.one_of("type", &["Exempt", "Limited"], errors),
    }
}

fn shares(at: &At<'_>, errors: &mut Errors) {
    if at.number("nominalConcurrencyShares") < 0 {
        let value = at.get("nominalConcurrencyShares");
        errors.invalid(at.path("nominalConcurrencyShares"), value, "must be a non-negative integer");
    }
}

fn lendable(at: &At<'_>, errors: &mut Errors) {
    if !(0..=100).contains(&at.number("lendablePercent")) {
        errors.invalid(at.path("lendablePercent"), at.get("lendablePercent"), "must be between 0 and 100, inclusive");
    }
}

fn limited(at: &At<'_>, errors: &mut Errors) {
    shares(at, errors);
    response(&at.child("limitResponse"), errors);
    lendable(at, errors);
    if at.number("borrowingLimitPercent") < 0 {
        let why = "if specified, must be a non-negative integer";
        errors.invalid(at.path("borrowingLimitPercent"), at.get("borrowingLimitPercent"), why);
    }
}

fn response(at: &At<'_>, errors: &mut Errors) {
    match at.text("type") {
        "Reject" => {
            at.forbids(&["queuing"], "must be nil if limited.limitResponse.type is not Limited", errors);
        }
        "Queue" => match at.present("queuing") {
            None => errors.required(at.path("queuing"), "must not be empty if limited.limitResponse.type is Limited"),
            Some(queuing) => self::queuing(&queuing, errors),
        },
        _ => at.one_of("type", &["Queue", "Reject"], errors),
    }
}

fn queuing(at: &At<'_>, errors: &mut Errors) {
    let [length, queues, hand] = ["queueLengthLimit", "queues", "handSize"].map(|name| at.number(name));
    let mut wrong = |name: &str, why: &str| errors.invalid(at.path(name), &at.number(name).into(), why);
    if length <= 0 {
        wrong("queueLengthLimit", "must be positive");
    }
    if queues <= 0 {
        wrong("queues", "must be positive");
    } else if queues > MAX_QUEUES {
        wrong("queues", &format!("must not be greater than {MAX_QUEUES}"));
    }
    if hand <= 0 {
        wrong("handSize", "must be positive");
    } else if hand > queues {
        wrong("handSize", &format!("should not be greater than queues ({queues})"));
    } else if entropy_bits(queues, hand) > MAX_HASH_BITS {
        let why = format!(
            "required entropy bits of deckSize {queues} and handSize {hand} should not be greater than {MAX_HASH_BITS}"
        );
        wrong("handSize", &why);
    }
}

/// Bits of a hash that it takes to deal a hand.
#[expect(clippy::cast_precision_loss, reason = "both are numbers of 32 bits")]
fn entropy_bits(deck: i64, hand: i64) -> f64 {
    ((deck as f64).log2() * hand as f64).ceil()
}
