// What if: a change, its plan beside the present, and its application if the plan is still the same.
import { useState } from "./vendor/hooks.js";
import { create, get, GROUP, patch, pathOf, replace, send } from "./api.js";
import { amount, count, document as yamlOf, quantity, shell } from "./format.js";
import { useAsked, useLive } from "./live.js";
import { homeOf, planRows, planSides } from "./model.js";
import { Action, Badge, Command, Copies, html, Meter, ObjectLink, Page, Problem, Section, Table } from "./parts.js";
import { href, route, setQuery } from "./route.js";
import { referenceOf } from "./object.js";

const MODES = [["away", "Take a cluster away"], ["policy", "Edit a policy"], ["pin", "Move one object"]];
const KINDS = { clusterplacementpolicies: "ClusterPlacementPolicy", placementpolicies: "PlacementPolicy" };
const AWAY = [["drain", "Drain it: everything that can move leaves"], ["lose", "Lose it: it does not answer any more"], ["cordon", "Cordon it: it takes nothing new"]];
const NEW_POLICY = `apiVersion: portolan.dev/v1alpha1
kind: PlacementPolicy
metadata: {name: spread, namespace: default}
spec:
  resources: [{apiGroup: apps, kinds: [Deployment]}]
  count: 2
  replicas: {mode: Divide, by: Equal}
`;

async function plan(workspace, changes) {
  return create(workspace, `${GROUP}/placementplans`, { apiVersion: "portolan.dev/v1alpha1", kind: "PlacementPlan", metadata: { name: "what-if" }, spec: { changes } });
}

/** Plans a policy that is written as YAML: the server parses it, and its answer has it as JSON. */
async function planText(workspace, text) {
  const indented = text.split("\n").map((line) => `      ${line}`).join("\n");
  const body = `apiVersion: portolan.dev/v1alpha1\nkind: PlacementPlan\nmetadata: {name: what-if}\nspec:\n  changes:\n  - apply:\n${indented}\n`;
  return send("POST", workspace, `${GROUP}/placementplans`, { body, type: "application/yaml" });
}

export function WhatIfPage() {
  const { query } = route.value;
  const mode = MODES.some(([key]) => key === query.mode) ? query.mode : "away";
  const Mode = { away: AwayChange, policy: PolicyChange, pin: PinChange }[mode];
  return html`<${Page} title="What if" state=${{ tone: "plain", word: "Nothing changes before you apply", message: "A plan shows what a change would move, computed by the scheduler itself from one snapshot." }}>
    <div class="tabs" role="group" aria-label="Kind of change">${MODES.map(([key, label]) => html`<button type="button" aria-pressed=${key === mode} onClick=${() => setQuery({ mode: key })}>${label}</button>`)}</div>
    <${Mode} key=${mode} />
  <//>`;
}

/** Runs a plan, and keeps its answer or refusal. */
function usePlan() {
  const [shown, show] = useState({ state: "none" });
  const run = async (ask) => {
    show({ state: "loading" });
    try {
      show({ state: "known", answer: await ask() });
    } catch (error) {
      show({ state: "refused", error });
    }
  };
  return [shown, run, () => show({ state: "none" })];
}

function AwayChange() {
  const { workspace, query } = route.value;
  const clusters = useLive(workspace, `${GROUP}/physicalclusters`);
  const [shown, run, forget] = usePlan();
  const how = query.how ?? "drain";
  const name = query.cluster ?? "";
  const change = how === "cordon" ? { cordon: { cluster: name } } : { [how]: [name] };
  const names = clusters.items.map((one) => one.metadata.name).sort();
  // A physical cluster is planned for where it is registered: its loss concerns all workspaces below.
  const home = homeOf(clusters.items.find((one) => one.metadata.name === name)) || workspace;
  const command = { drain: `kubectl portolan drain ${shell(name || "CLUSTER")} --dry-run=server`, cordon: `kubectl portolan cluster cordon ${shell(name || "CLUSTER")} --dry-run=server`,
    lose: `kubectl create -o yaml --validate=false -f - <<< '{"apiVersion":"portolan.dev/v1alpha1","kind":"PlacementPlan","metadata":{"name":"what-if"},"spec":{"changes":[{"lose":["${name || "CLUSTER"}"]}]}}'` }[how];
  const pick = (changes) => (setQuery(changes), forget());
  return html`
    <${Section} title="Change">
      ${clusters.state === "refused" && html`<${Problem} error=${clusters.error} doing="You may not list physical clusters; name one below." />`}
      <div class="form-row">
        <label class="field">Physical cluster<input list="cluster-names" value=${name} placeholder="Name" onInput=${(e) => pick({ cluster: e.target.value })} /></label>
        <datalist id="cluster-names">${names.map((one) => html`<option value=${one} />`)}</datalist>
        <label class="field">What happens<select value=${how} onChange=${(e) => pick({ how: e.target.value })}>${AWAY.map(([key, text]) => html`<option value=${key} selected=${key === how}>${text}</option>`)}</select></label>
        <button type="button" class="primary" disabled=${!name} title=${command} onClick=${() => run(() => plan(home, [change]))}>Plan</button>
      </div>
      ${home !== workspace && html`<p class="note">${name} is registered in ${home}, where this is planned.</p>`}
      <${Command} text=${command} />
    <//>
    <${Plan} shown=${shown} apply=${(status) => html`<${ApplyAway} how=${how} name=${name} status=${status} home=${home} />`} />`;
}

function ApplyAway({ how, name, status, home }) {
  if (how === "lose") return html`<span class="note">A loss is only planned: it shows whether the rest could carry the load.</span>`;
  const drain = async () => {
    const object = { apiVersion: "portolan.dev/v1alpha1", kind: "Drain", metadata: { generateName: `${name}-` }, spec: { physicalClusters: [name], expectPlan: status.hash } };
    const made = await create(home, `${GROUP}/drains`, object);
    location.hash = href("drain", [made.metadata.name], {}, home);
  };
  const cordon = async () => patch(home, `${GROUP}/physicalclusters/${name}`, { metadata: { annotations: { "portolan.dev/expect-plan": status.hash } }, spec: { unschedulable: true } });
  return how === "drain"
    ? html`<${Action} label="Start the drain" title=${`Drain ${name}`} danger typed=${name} command=${`kubectl portolan drain ${shell(name)} --expect-plan ${status.hash}`} run=${drain}
        explain=${html`<p>${inWords(status)}.</p><p>Objects leave in small groups. The drain can be paused, aborted and undone. It starts only if its plan is still <code>${status.hash}</code>.</p>`} />`
    : html`<${Action} label="Cordon" title=${`Cordon ${name}`} primary command=${`kubectl portolan cluster cordon ${shell(name)}`} run=${cordon} explain=${html`<p>${inWords(status)}.</p><p>What runs there stays.</p>`} />`;
}

function PolicyChange() {
  const { workspace, query } = route.value;
  const [text, type] = useState(null);
  const [shown, run, forget] = usePlan();
  const own = useLive(workspace, `${GROUP}/clusterplacementpolicies`);
  const local = useLive(workspace, `${GROUP}/placementpolicies`);
  const chosen = query.policy ?? "";
  const [resource, namespace, name] = chosen.split("/");
  const path = chosen && (namespace ? `${GROUP}/namespaces/${namespace}/${resource}/${name}` : `${GROUP}/${resource}/${name}`);
  const stored = useAsked(() => (path ? get(workspace, path) : Promise.resolve(null)), [workspace, path]);
  const present = stored.value ? yamlOf(stored.value) : NEW_POLICY;
  const shownText = text ?? present;
  const options = [["", "A new policy"], ...[...own.items].map((one) => optionOf("clusterplacementpolicies", one)), ...[...local.items].map((one) => optionOf("placementpolicies", one))];
  const choose = (value) => (setQuery({ policy: value }), type(null), forget());
  const apply = async (answer) => {
    const wanted = answer.spec.changes[0].apply;
    const kind = Object.entries(KINDS).find(([, one]) => one === wanted.kind)?.[0];
    const at = wanted.metadata.namespace ? `${GROUP}/namespaces/${wanted.metadata.namespace}/${kind}` : `${GROUP}/${kind}`;
    const annotations = { ...wanted.metadata.annotations, "portolan.dev/expect-plan": answer.status.hash };
    const same = stored.value && stored.value.kind === wanted.kind && stored.value.metadata.name === wanted.metadata.name;
    const metadata = { ...wanted.metadata, annotations, ...(same && { resourceVersion: stored.value.metadata.resourceVersion }) };
    if (same) await replace(workspace, `${at}/${wanted.metadata.name}`, { ...wanted, metadata });
    else await create(workspace, at, { ...wanted, metadata });
    setQuery({ policy: `${kind}/${wanted.metadata.namespace ?? ""}/${wanted.metadata.name}` });
    type(null);
    forget();
    stored.again();
  };
  return html`
    <${Section} title="Change">
      ${[own, local].filter((list) => list.state === "refused").slice(0, 1).map((list) => html`<${Problem} error=${list.error} doing="You may not list all policies here." />`)}
      <label class="field narrow">Policy<select value=${chosen} onChange=${(e) => choose(e.target.value)}>${options.map(([key, label]) => html`<option value=${key} selected=${key === chosen}>${label}</option>`)}</select></label>
      ${stored.state === "refused" && html`<${Problem} error=${stored.error} />`}
      <label class="field">Text (YAML)<textarea class="editor" rows="16" spellcheck="false" value=${shownText} onInput=${(e) => (type(e.target.value), shown.state !== "none" && forget())}></textarea></label>
      <div class="form-row"><button type="button" class="primary" title="kubectl portolan policy plan -f policy.yaml" onClick=${() => run(() => planText(workspace, shownText))}>Plan</button>
        ${text !== null && html`<button type="button" onClick=${() => choose(chosen)}>Discard the edit</button>`}</div>
      <${Command} text="kubectl portolan policy plan -f policy.yaml" />
    <//>
    <${Plan} shown=${shown} apply=${(status, answer) => html`<${Action} label="Apply the policy" primary command=${`kubectl portolan policy plan -f policy.yaml && kubectl apply -f policy.yaml   # with portolan.dev/expect-plan: ${status.hash}`}
      explain=${html`<p>${inWords(status)}.</p><p>It is written only if its plan is still <code>${status.hash}</code>.</p>`} run=${() => apply(answer)} />`} />`;
}

function optionOf(resource, policy) {
  const { namespace, name } = policy.metadata;
  return [`${resource}/${namespace ?? ""}/${name}`, `${name} · ${KINDS[resource]}${namespace ? ` in ${namespace}` : ""}`];
}

function PinChange() {
  const { workspace, query } = route.value;
  const [shown, run, forget] = usePlan();
  const clusters = useLive(workspace, `${GROUP}/physicalclusters`);
  const placements = useLive(workspace, `${GROUP}/placements`);
  const object = query.object ? referenceOf(query.object.split("/")) : null;
  const target = query.to ?? "";
  const names = clusters.items.map((one) => one.metadata.name).sort();
  const pin = object && { object: { apiVersion: object.apiVersion, kind: object.kind, namespace: object.namespace, name: object.name }, clusters: target.split(",").filter(Boolean) };
  const kubectl = object ? `kubectl portolan move ${object.kind.toLowerCase()}/${object.name} -n ${shell(object.namespace)} --to ${shell(target || "CLUSTER")}` : "kubectl portolan move TYPE/NAME --to CLUSTER";
  const pick = (changes) => (setQuery(changes), forget());
  const apply = async (status) => {
    const path = `${await pathOf(workspace, object.apiVersion, object.kind, object.namespace)}/${object.name}`;
    await patch(workspace, path, { metadata: { annotations: { "portolan.dev/pin": target, "portolan.dev/expect-plan": status.hash } } });
    location.hash = href("object", query.object.split("/"));
  };
  const options = placements.items.map((one) => [[one.spec.object.apiVersion.replace("/", "~"), one.spec.object.kind, one.metadata.namespace, one.spec.object.name].join("/"), `${one.spec.object.kind} ${one.spec.object.name} in ${one.metadata.namespace}`]);
  options.sort((a, b) => (a[1] < b[1] ? -1 : 1));
  if (query.object && !options.some(([key]) => key === query.object)) options.unshift([query.object, `${object.kind} ${object.name}`]);
  return html`
    <${Section} title="Change">
      <div class="form-row">
        <label class="field">Object<select value=${query.object ?? ""} onChange=${(e) => pick({ object: e.target.value })}><option value="">Choose one</option>${options.map(([key, label]) => html`<option value=${key} selected=${key === query.object}>${label}</option>`)}</select></label>
        <label class="field">To<input list="pin-names" value=${target} placeholder="Cluster, or several with commas" onInput=${(e) => pick({ to: e.target.value })} /></label>
        <datalist id="pin-names">${names.map((one) => html`<option value=${one} />`)}</datalist>
        <button type="button" class="primary" disabled=${!object || !target} title=${`${kubectl} --dry-run=server`} onClick=${() => run(() => plan(workspace, [{ pin }]))}>Plan</button>
      </div>
      <${Command} text=${`${kubectl} --dry-run=server`} />
    <//>
    <${Plan} shown=${shown} apply=${(status) => html`<${Action} label="Move it" primary command=${kubectl} run=${() => apply(status)}
      explain=${html`<p>${inWords(status)}.</p><p>The new copy gets ready before the old one goes, unless it must run only once. It is done only if the plan is still <code>${status.hash}</code>.</p>`} />`} />`;
}

/** Effect of a plan in words, without its hash. */
function inWords(status) {
  return status.summary.replace(/; plan [0-9a-f]+$/, "");
}

/** Plan beside the present. */
function Plan({ shown, apply }) {
  if (shown.state === "none") return html`<div class="empty card"><h2>No plan yet</h2><p>Choose a change and press Plan. Nothing is written.</p></div>`;
  if (shown.state === "loading") return html`<div class="empty card" aria-busy="true">Planning…</div>`;
  if (shown.state === "refused") return html`<${Problem} error=${shown.error} acting doing="Users who may edit a workspace may plan in it." />`;
  const { status } = shown.answer;
  const rows = planRows(status);
  const refused = status.refused ?? [];
  const counts = status.counts ?? {};
  const types = { moves: ["info", "moves"], follows: ["plain", "follows"], splits: ["info", "divided anew"] };
  const hidden = status.hidden ?? [];
  return html`
    <div role="status" class="plan-head card"><div><h2>${inWords(status)}</h2>
      <p class="note">Read at revision ${status.resourceVersion}. Hash <code>${status.hash}</code></p></div><span class="spring"></span>${apply(status, shown.answer)}</div>
    <${Sides} status=${status} />
    ${refused.length > 0 && html`<${Section} title="Refused" note="they would not be placed as wanted">
      <${Table} label="Refused" rows=${refused} columns=${[
        ["Object", (row) => html`<${ObjectLink} object=${row.object} workspace=${row.object.workspace} /><span class="sub">${row.object.kind}</span>`],
        ["Workspace", (row) => row.object.workspace],
        ["Stays on", (row) => html`<${Copies} copies=${row.stays} />`],
        ["Reason", (row) => html`<${Badge} tone="bad">${row.reason}<//>`],
        ["Message", (row) => row.message, "wide"]]} /><//>`}
    <${Section} title="Now and then" note=${`${count(counts.moves ?? 0, "move")}, ${count(counts.splits ?? 0, "new division")}, ${count(counts.followers ?? 0, "follower")}`}>
      <${Table} label="Objects that would change" rows=${rows} empty="Nothing would move." columns=${[
        ["Object", (row) => html`<${ObjectLink} object=${row.object} workspace=${row.object.workspace} /><span class="sub">${row.object.kind}</span>`],
        ["Workspace", (row) => row.object.workspace],
        ["", (row) => html`<${Badge} tone=${types[row.type][0]}>${types[row.type][1]}<//>`],
        ["Now", (row) => html`<${Copies} copies=${row.from} />`],
        ["Then", (row) => html`<${Copies} copies=${row.to} />`],
        ["Reason", (row) => row.reason, "wide"]]} />
      ${hidden.map((one) => html`<p class="note">${count(Object.values(one.counts ?? {}).reduce((sum, number) => sum + number, 0), "further object")} ${one.workspace ? `of ${one.workspace} ` : ""}that you may not see.</p>`)}
    <//>
    ${(status.disruptionBudgets ?? []).length > 0 && html`<${Section} title="Disruption budgets"><${Table} label="Disruption budgets" rows=${status.disruptionBudgets} columns=${[
      ["Budget", (row) => `${row.budget.namespace}/${row.budget.name}`], ["Would disrupt", (row) => row.disrupted, "num"], ["Allows", (row) => row.allowed, "num"]]} /><//>`}`;
}

/** Physical clusters now and then, side by side. */
function Sides({ status }) {
  const sides = planSides(status);
  if (sides.length === 0) return null;
  const bar = (side, amounts, resource) => {
    const most = quantity(side.bounds[resource]) ?? quantity(side.allocatable[resource]) ?? 0;
    const value = quantity(amounts[resource]) ?? 0;
    return html`<${Meter} value=${value} most=${most} tone=${value > most ? "bad" : "accent"} text=${`${amount(value, resource)} of ${amount(most, resource)}`} />`;
  };
  const column = (title, key) => html`<div class="side-column"><h3>${title}</h3>${sides.map((side) => html`<div class="side-row"><strong>${side.name}</strong>
    ${bar(side, side[key], "cpu")}${bar(side, side[key], "memory")}
    <span class="note">${key === "before" ? (side.leaves ? `${count(side.leaves, "replica")} would leave` : "nothing leaves") : side.arrives ? `${count(side.arrives, "replica")} would arrive` : "nothing arrives"}</span></div>`)}</div>`;
  return html`<${Section} title="Physical clusters" note="requested resources"><div class="sides">${column("Now", "before")}${column("Then", "after")}</div><//>`;
}
