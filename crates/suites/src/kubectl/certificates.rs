//! Requests for certificates: approved and denied by hand.

use anyhow::Result;

use super::{KubectlCheck, KubectlContext};

pub(super) const CHECKS: &[KubectlCheck] = &[
    ("certificate approve and deny: what they say, and what becomes of the requests", decide),
    ("certificate approve of what is not there", not_there),
];

/// A request for a certificate that no signer of the server signs.
const REQUEST: &str = "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURSBSRVFVRVNULS0tLS0KTUlIYk1JR0NBZ0VBTUNBeERUQUxCZ05WQkFvTUJIUmxZVzB4RHpBTkJnTlZCQU1NQm05eVlXTnNaVEJaTUJNRwpCeXFHU000OUFnRUdDQ3FHU000OUF3RUhBMElBQkNCUjlJV0w4aFpvek5YU1N0YnlVTFBoWVNWRk43WEVZU0YwCkt5VDJkcUtBSVRLY0kwb3A0SmRaS3doTkt0c1hSTm1yQnlQQWgxU2NBanFEc21xNEZvR2dBREFLQmdncWhrak8KUFFRREFnTklBREJGQWlCajZUcEZmaGZMQTNZcCsvLzFsM25WWkl2V1VFUjlFa0RMVXlOREF2ZEF0UUloQU1PRgptc0s5UjdJT3lyeHRvMkxmMXlFc3ZkT3JhZW4zZHRkbHBjTGF6c3psCi0tLS0tRU5EIENFUlRJRklDQVRFIFJFUVVFU1QtLS0tLQo=";

fn request(name: &str) -> String {
    format!(
        "{{apiVersion: certificates.k8s.io/v1, kind: CertificateSigningRequest, metadata: {{name: {name}}},
           spec: {{signerName: example.com/own, usages: [client auth], request: {REQUEST}}}}}\n---\n"
    )
}

fn decide(context: &KubectlContext) -> Result<()> {
    let resource = "certificatesigningrequest.certificates.k8s.io";
    let made = format!("{resource}/good created\n{resource}/bad created\n");
    context.prints_for("create -f -", &(request("good") + &request("bad")), &made)?;
    context.prints("certificate approve good", &format!("{resource}/good approved\n"))?;
    context.prints("certificate deny bad", &format!("{resource}/bad denied\n"))?;
    for (name, expected) in [("good", "Approved KubectlApprove"), ("bad", "Denied KubectlDeny")] {
        let path = "{.status.conditions[*].type} {.status.conditions[*].reason}";
        context.path_is(&format!("csr/{name}"), path, expected)?;
    }
    let user = context.path("csr/good", "{.spec.username}")?;
    let table = format!(
        "NAME AGE SIGNERNAME REQUESTOR REQUESTEDDURATION CONDITION\n\
         good <age> example.com/own {user} <none> Approved\nbad <age> example.com/own {user} <none> Denied\n"
    );
    context.prints("get csr good bad", &table)?;
    let denied = "error: certificate signing request \"bad\" is already Denied\n";
    context.refuses("certificate approve bad", "", &[denied])?;
    let deleted =
        ["good", "bad"].map(|name| format!("certificatesigningrequest.certificates.k8s.io \"{name}\" deleted\n"));
    context.prints("delete csr good bad", &deleted.concat())
}

fn not_there(context: &KubectlContext) -> Result<()> {
    let text = "Error from server (NotFound): certificatesigningrequests.certificates.k8s.io \"none\" not found";
    context.refuses("certificate approve none", "", &[text])
}
