// One object: where it runs, why there, how it got there; its pods, events and logs.
import { create, get, GROUP, patch, pathOf } from "./api.js";
import { clock, shell } from "./format.js";
import { useAsked, useLive, useTicks } from "./live.js";
import { condition, placementState, policyName, whyMatrix } from "./model.js";
import { Action, Badge, Command, html, ListBody, Meter, Page, Problem, Section, Table } from "./parts.js";
import { Events, Pods } from "./pods.js";
import { href, route } from "./route.js";

/** Returns the reference that the URL names. */
export function referenceOf(args) {
  const [apiVersion, kind, namespace, name] = args;
  return { apiVersion: apiVersion.replace("~", "/"), kind, namespace, name };
}

export function ObjectPage() {
  useTicks(5000);
  const { workspace, args } = route.value;
  const of = referenceOf(args);
  const kubectl = `${of.kind.toLowerCase()}/${of.name}`;
  const scope = of.namespace ? ` -n ${shell(of.namespace)}` : "";
  const placements = useLive(workspace, of.namespace && `${GROUP}/namespaces/${of.namespace}/placements`);
  const placement = placements.items.find((one) => one.spec.object.kind === of.kind && one.spec.object.name === of.name);
  const stored = useAsked(async () => get(workspace, `${await pathOf(workspace, of.apiVersion, of.kind, of.namespace)}/${of.name}`), [workspace, ...args]);
  const version = placement?.metadata.resourceVersion;
  const pin = stored.value?.metadata.annotations?.["portolan.dev/pin"];
  const state = placement ? placementState(placement) : undefined;
  const crumbs = [[workspace, href("objects")], ...(of.namespace ? [[of.namespace, href("objects", [], { namespace: of.namespace })]] : [])];
  const unpin = async () => {
    await patch(workspace, `${await pathOf(workspace, of.apiVersion, of.kind, of.namespace)}/${of.name}`, { metadata: { annotations: { "portolan.dev/pin": null } } });
    stored.again();
  };
  const actions = html`
    <a class="button primary" href=${href("what-if", [], { mode: "pin", object: args.join("/") })} title=${`kubectl portolan move ${kubectl}${scope} --to CLUSTER`}>Move…</a>
    ${pin && html`<${Action} label="Unpin" explain=${html`<p>The policy decides again where it runs. It may move.</p>`} command=${`kubectl annotate ${kubectl}${scope} portolan.dev/pin-`} run=${unpin} />`}`;
  return html`<${Page} kind=${of.kind} title=${of.name} state=${state} crumbs=${crumbs} lists=${[placements]} actions=${actions}>
    ${stored.state === "refused" && html`<${Problem} error=${stored.error} />`}
    ${pin && html`<div class="notice info">Pinned to <strong>${pin}</strong> by the annotation portolan.dev/pin, within the constraints of policies.</div>`}
    <div class="columns">
      <${Where} placement=${placement} list=${placements} command=${`kubectl portolan where ${kubectl}${scope}`} />
      <${Timeline} placement=${placement} />
    </div>
    <${Why} of=${of} version=${version} command=${`kubectl portolan why ${kubectl}${scope}`} />
    ${stored.value && html`<${Pods} object=${stored.value} of=${of} />`}
    <${Events} of=${of} command=${`kubectl get events${scope} --field-selector involvedObject.name=${shell(of.name)}`} />
  <//>`;
}

function Where({ placement, list, command }) {
  const copies = placement?.status?.clusters ?? [];
  const placed = placement && condition(placement, "Placed");
  const rejected = Object.entries(placement?.status?.rejected ?? {});
  return html`<${Section} title="Where" note=${placement && `by ${policyName(placement.status?.policy)}`}>
    <${ListBody} list=${placement ? { ...list, items: [placement] } : { ...list, items: [] }} doing="You may not list placements in this namespace."
      empty=${html`<p>It has no placement of its own: it follows other objects, or is not placed at all. “Why” below has the reason.</p>`}>
      ${placed && placed.status !== "True" && html`<div class="notice warn"><strong>${placed.reason}</strong> ${placed.message}</div>`}
      <${Table} label="Copies" rows=${copies} keyOf=${(copy) => copy.uid} empty="No copy exists." columns=${[
        ["Cluster", (copy) => html`<a href=${href("clusters", [], { q: copy.name })}>${copy.name}</a>`],
        ["Phase", (copy) => html`<${Badge} tone=${copy.phase === "Leaving" ? "info" : copy.reason ? "bad" : "ok"}>${copy.reason || copy.phase}<//>`],
        ["Ready", (copy) => html`<${Meter} value=${copy.ready} most=${copy.desired ?? 1} tone=${copy.ready < (copy.desired ?? 1) ? "warn" : "ok"} text=${copy.desired === undefined ? (copy.ready ? "synced" : "not yet") : `${copy.ready} of ${copy.desired}`} />`],
        ["Problem", (copy) => copy.message ?? "–"],
      ]} />
      ${rejected.length > 0 && html`<p class="note">Left out: ${rejected.map(([reason, number]) => `${number} ${reason}`).join(", ")}.</p>`}
    <//>
    <${Command} text=${command} />
  <//>`;
}

function Timeline({ placement }) {
  const transitions = placement?.status?.transitions ?? [];
  return html`<${Section} title="Timeline" note="the last ten changes">
    ${transitions.length === 0 ? html`<p class="empty">No change is recorded.</p>` : html`<ol class="timeline">${transitions.map((one) => html`
      <li><time datetime=${one.time}>${clock(one.time)}</time>
        <div><strong>${one.from || "nowhere"} <span aria-label="to">→</span> ${one.to || "nowhere"}</strong>
          <p>${one.cause}</p>${one.actor && html`<p class="note">${one.reason && `${one.reason}: `}${one.actor}${one.revision && ` at ${one.revision}`}</p>`}</div></li>`)}</ol>`}
  <//>`;
}

async function explain(workspace, of) {
  const review = { apiVersion: "portolan.dev/v1alpha1", kind: "PlacementExplanation", metadata: { name: "why", namespace: of.namespace },
    spec: { object: { apiVersion: of.apiVersion, kind: of.kind, name: of.name } } };
  return (await create(workspace, `${GROUP}/namespaces/${of.namespace}/placementexplanations`, review)).status;
}

function Why({ of, version, command }) {
  const workspace = route.value.workspace;
  const asked = useAsked(() => (of.namespace ? explain(workspace, of) : Promise.resolve(null)), [workspace, of.kind, of.namespace, of.name, version]);
  if (asked.state === "refused") return html`<${Section} title="Why"><${Problem} error=${asked.error} doing="You may not ask for explanations in this namespace." /><//>`;
  const status = asked.value;
  if (!status) return html`<${Section} title="Why"><p class="empty" aria-busy=${asked.state === "loading"}>${asked.state === "loading" ? "Asking the scheduler…" : "It is not placed by itself."}</p><//>`;
  const { filters, rows } = whyMatrix(status);
  return html`<${Section} title="Why" note="every physical cluster in reach, every filter">
    <p class="summary">${status.summary}</p>
    ${(status.notes ?? []).map((note) => html`<div class="notice info">${note}</div>`)}
    ${status.nearest?.change && html`<div class="notice info"><strong>What would change it:</strong> for <strong>${status.nearest.physicalCluster}</strong>, ${status.nearest.change}.</div>`}
    ${rows.length > 0 && html`<${Table} label="Filters by physical cluster" rows=${rows} keyOf=${(row) => row.name} columns=${[
      ["Cluster", (row) => html`<strong>${row.name}</strong>`],
      ["Result", (row) => html`<${Badge} tone=${row.chosen ? "ok" : "plain"}>${row.result}${row.replicas === undefined ? "" : ` ×${row.replicas}`}<//>${row.messages.length > 0 && html`<span class="why">${row.messages.join("; ")}</span>`}`],
      ["Score", (row) => row.score, "num"],
      ...filters.map((filter, at) => [filter, (row) => html`<${Cell} verdict=${row.cells[at]} />`, "tick"]),
    ]} />`}
    ${(status.policies ?? []).length > 0 && html`<details class="more-detail"><summary>Policies (${status.policies.length})</summary>
      <${Table} label="Policies" rows=${status.policies} columns=${[["Policy", (row) => row.policy], ["Verdict", (row) => row.verdict]]} /></details>`}
    ${rows.some((row) => row.scores.length) && html`<details class="more-detail"><summary>Scores, the most important first</summary>
      <${Table} label="Scores" rows=${rows} keyOf=${(row) => row.name} columns=${[["Cluster", (row) => row.name], ...rows[0].scores.map((score, at) => [score.name, (row) => row.scores[at]?.value, "num"])]} /></details>`}
    <${Command} text=${command} />
  <//>`;
}

function Cell({ verdict }) {
  if (!verdict) return html`<span class="muted">–</span>`;
  const text = verdict.passed ? verdict.message || "passes" : `${verdict.reason}: ${verdict.message}`;
  return html`<span class=${verdict.passed ? "yes" : "no"} title=${text}><span aria-hidden="true">${verdict.passed ? "✓" : "✕"}</span><span class="hidden">${text}</span></span>`;
}
