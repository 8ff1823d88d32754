// Physical clusters: their state, room and taints; cordon, drain and join.
import { useState } from "./vendor/hooks.js";
import { GROUP, patch } from "./api.js";
import { amount, quantity, shell } from "./format.js";
import { useLive, useTicks } from "./live.js";
import { clusterState, connector, credentials, homeOf } from "./model.js";
import { Action, Age, Badge, Command, html, ListBody, Meter, Page, Search, Section, Table } from "./parts.js";
import { href, route } from "./route.js";

export function ClustersPage() {
  useTicks(5000);
  const { workspace, query } = route.value;
  const list = useLive(workspace, `${GROUP}/physicalclusters`);
  const wanted = (query.q ?? "").toLowerCase();
  const text = (one) => `${one.metadata.name} ${Object.entries(one.metadata.labels ?? {}).join(" ")}`.toLowerCase();
  const rows = list.items.filter((one) => text(one).includes(wanted)).sort((a, b) => (a.metadata.name < b.metadata.name ? -1 : 1));
  return html`<${Page} title="Clusters" lists=${[list]} crumbs=${[[workspace, href("objects")]]} actions=${html`<a class="button primary" href=${href("clusters", [], { join: query.join ? "" : "NAME" })}>${query.join ? "Close" : "Join a cluster"}</a>`}>
    ${query.join && html`<${Join} list=${list} />`}
    <${ListBody} list=${list} doing="The role view includes the list of physical clusters; with less you see only where your objects run."
      empty=${html`<h2>No physical cluster in reach</h2><p>Objects wait until one is registered here or in a workspace above.</p><${Command} text="kubectl portolan cluster join NAME --kubeconfig FILE" />`}>
      <div class="filters"><${Search} label="Find by name or label" /></div>
      <div class="cards">${rows.map((one) => html`<${ClusterCard} key=${one.metadata.uid} cluster=${one} />`)}</div>
    <//>
  <//>`;
}

function ClusterCard({ cluster }) {
  const { workspace } = route.value;
  const { name } = cluster.metadata;
  const state = clusterState(cluster);
  const { spec = {}, status = {}, metadata: { annotations = {} } } = cluster;
  const home = homeOf(cluster) || workspace;
  const inherited = home !== workspace;
  const taints = [...(spec.taints ?? []), ...(status.taints ?? [])];
  const room = (resource) => {
    const used = quantity(status.usage?.[resource]) ?? 0;
    const most = quantity(spec.bounds?.[resource]) ?? quantity(status.allocatable?.[resource]);
    return html`<${Meter} value=${used} most=${most ?? 0} tone=${used > 0.9 * (most ?? Infinity) ? "warn" : "accent"} text=${`${amount(used, resource)} of ${amount(most, resource)}${spec.bounds?.[resource] ? " (bound)" : ""}`} />`;
  };
  const cordon = (unschedulable) => () => patch(workspace, `${GROUP}/physicalclusters/${name}`, { spec: { unschedulable } });
  return html`<article class="card cluster" aria-label=${name}>
    <div class="card-head"><h2>${name}</h2><${Badge} tone=${state.tone}>${state.word}<//></div>
    ${state.message && state.tone !== "ok" && html`<p class="note">${state.message}</p>`}
    <dl class="facts">
      <div><dt>Kubernetes</dt><dd>${status.version || "–"}</dd></div>
      <div><dt>Connection</dt><dd>${connector(cluster)}</dd></div>
      <div><dt>Heartbeat</dt><dd>${status.heartbeatTime ? html`<${Age} time=${status.heartbeatTime} /> ago` : "–"}</dd></div>
      ${annotations["portolan.dev/agent-version"] && html`<div><dt>Agent</dt><dd>${annotations["portolan.dev/agent-version"]}</dd></div>`}
      <div><dt>Credentials</dt><dd>${credentials(cluster)}</dd></div>
      <div><dt>Workloads</dt><dd>${status.workloads ?? 0}</dd></div>
      ${inherited && html`<div><dt>Registered in</dt><dd>${home}</dd></div>`}
      <div><dt>Joined</dt><dd><${Age} time=${cluster.metadata.creationTimestamp} /></dd></div></dl>
    <div class="rooms"><span>CPU</span>${room("cpu")}<span>Memory</span>${room("memory")}<span>Pods</span>${room("pods")}</div>
    <p class="chips">${Object.entries(cluster.metadata.labels ?? {}).map(([key, value]) => html`<span class="chip plain">${key}=${value}</span>`)}
      ${taints.map((taint) => html`<span class="chip warn" title="Taint">${taint.key}${taint.value ? `=${taint.value}` : ""}:${taint.effect}</span>`)}</p>
    <details class="more-detail"><summary>Conditions</summary><${Table} label=${`Conditions of ${name}`} rows=${status.conditions ?? []} columns=${[
      ["Condition", (one) => one.type], ["Status", (one) => one.status], ["Reason", (one) => one.reason || "–"], ["Message", (one) => one.message || "–", "wide"], ["Since", (one) => html`<${Age} time=${one.lastTransitionTime} />`, "num"]]} /></details>
    <div class="card-foot">
      ${spec.unschedulable
        ? html`<${Action} label="Uncordon" disabled=${inherited} why=${`It is registered in ${home}`} command=${`kubectl portolan cluster uncordon ${shell(name)}`} explain=${html`<p>It takes new objects again.</p>`} run=${cordon(false)} />`
        : html`<${Action} label="Cordon" disabled=${inherited} why=${`It is registered in ${home}`} command=${`kubectl portolan cluster cordon ${shell(name)}`} explain=${html`<p>It takes nothing new. What runs there stays.</p>`} run=${cordon(true)} />`}
      <a class="button" href=${href("what-if", [], { mode: "away", cluster: name, how: "drain" }, home)} title=${`kubectl portolan drain ${name} --dry-run=server`}>Plan a drain</a>
    </div></article>`;
}

const STEPS = [["Registered", "the object exists"], ["Reachable", "its API server answers"], ["Ready", "its kinds and rights are known, and it takes objects"]];

function Join({ list }) {
  const { query } = route.value;
  const [by, choose] = useState("kubeconfig");
  const name = query.join === "NAME" ? "" : query.join;
  const shown = name || "NAME";
  const cluster = list.items.find((one) => one.metadata.name === name);
  const state = cluster && clusterState(cluster);
  const commands = {
    kubeconfig: `kubectl portolan cluster join ${shell(shown)} --kubeconfig ${shell(`${shown}.kubeconfig`)}`,
    agent: `kubectl portolan cluster join ${shell(shown)} --kubeconfig ${shell(`${shown}.kubeconfig`)} --agent`,
  };
  const reached = [Boolean(cluster), Boolean(cluster?.status?.version), state?.tone === "ok"];
  return html`<${Section} title="Join a physical cluster">
    <div class="form-row"><label class="field">Name<input value=${name} autocomplete="off" placeholder="eu-3" onInput=${(e) => history.replaceState(null, "", href("clusters", [], { join: e.target.value || "NAME" })) ?? (route.value = { ...route.value, query: { ...route.value.query, join: e.target.value || "NAME" } })} /></label>
      <fieldset class="field"><legend>Connection</legend>
        <label class="check"><input type="radio" name="by" checked=${by === "kubeconfig"} onChange=${() => choose("kubeconfig")} /> The server reaches it</label>
        <label class="check"><input type="radio" name="by" checked=${by === "agent"} onChange=${() => choose("agent")} /> It is behind a firewall: an agent dials out</label></fieldset></div>
    <p>Run this where you have both kubeconfigs. It creates an account with the least rights there, checks the way, and registers it here:</p>
    <${Command} text=${commands[by]} />
    <ol class="steps" aria-live="polite">${STEPS.map(([step, means], at) => html`<li class=${reached[at] ? "done" : ""}><span aria-hidden="true">${reached[at] ? "✓" : "○"}</span> <strong>${step}</strong> ${reached[at] ? "" : "waiting: "}${means}</li>`)}</ol>
    ${state && state.tone !== "ok" && state.message && html`<div class="notice warn">${state.message}</div>`}
  <//>`;
}
