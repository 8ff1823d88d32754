// Drains: their list, and one with its rows, controls and report.
import { GROUP, patch, remove } from "./api.js";
import { clock, shell } from "./format.js";
import { useLive, useTicks } from "./live.js";
import { condition, drainActions, drainTone, splitCopies } from "./model.js";
import { Action, Age, Badge, Command, Copies, html, ListBody, Meter, Page, Section, Table } from "./parts.js";
import { href, route } from "./route.js";

const ROW_TONES = { Moving: "info", Moved: "ok", Restored: "ok", Blocked: "bad", Pending: "plain", Skipped: "warn", Changed: "warn" };

export function DrainsPage() {
  useTicks(5000);
  const { workspace } = route.value;
  const list = useLive(workspace, `${GROUP}/drains`);
  const rows = [...list.items].sort((a, b) => (a.metadata.creationTimestamp < b.metadata.creationTimestamp ? 1 : -1));
  const actions = html`<a class="button primary" href=${href("what-if", [], { mode: "away", how: "drain" })} title="kubectl portolan drain CLUSTER --dry-run=server">Plan a drain</a>`;
  return html`<${Page} title="Drains" lists=${[list]} actions=${actions} crumbs=${[[workspace, href("objects")]]}>
    <${ListBody} list=${list} doing="Drains are for administrators of the physical clusters: the role portolan:drainer allows them."
      empty=${html`<h2>No drain</h2><p>A drain empties physical clusters in small groups and can be undone. It is made in the workspace where they are registered.</p><${Command} text="kubectl portolan drain CLUSTER" />`}>
      <div class="card flush"><${Table} label="Drains" rows=${rows} keyOf=${(drain) => drain.metadata.uid} columns=${[
        ["Drain", (drain) => html`<a href=${href("drain", [drain.metadata.name])}>${drain.metadata.name}</a>`],
        ["Clusters", (drain) => drain.spec.physicalClusters.join(", ")],
        ["Phase", (drain) => html`<${Badge} tone=${drainTone(drain.status?.phase)}>${drain.status?.phase ?? "Planned"}<//>`],
        ["Progress", (drain) => html`<${Progress} drain=${drain} />`],
        ["Blocked", (drain) => drain.status?.counts?.blocked ?? 0, "num"],
        ["Age", (drain) => html`<${Age} time=${drain.metadata.creationTimestamp} />`, "num"]]} /></div>
    <//>
  <//>`;
}

function Progress({ drain }) {
  const { total = 0, moved = 0, skipped = 0, restored = 0, changed = 0 } = drain.status?.counts ?? {};
  const done = drain.spec.undo ? restored + changed : moved + skipped;
  return html`<${Meter} value=${done} most=${total || 1} tone="ok" text=${`${done} of ${total}`} />`;
}

export function DrainPage() {
  useTicks();
  const { workspace, args } = route.value;
  const list = useLive(workspace, `${GROUP}/drains`, { fieldSelector: `metadata.name=${args[0]}` });
  const drain = list.items[0];
  const phase = drain?.status?.phase ?? "Planned";
  const held = drain && ["Blocked", "Accepted"].map((type) => condition(drain, type)).find((one) => one && (one.type === "Blocked") === (one.status === "True") && one.message);
  const state = drain && { word: phase, tone: drainTone(phase), message: drain.status?.report?.summary || held?.message || "" };
  return html`<${Page} kind="Drain" title=${args[0]} state=${state} lists=${[list]} crumbs=${[[workspace, href("objects")], ["Drains", href("drains")]]} actions=${drain && html`<${Controls} drain=${drain} />`}>
    <${ListBody} list=${list} empty=${html`<p>There is no drain ${args[0]} in ${workspace}.</p>`} doing="The role portolan:drainer allows to read drains.">${drain && html`<${Content} drain=${drain} />`}<//>
  <//>`;
}

function Controls({ drain }) {
  const { workspace } = route.value;
  const name = drain.metadata.name;
  const first = drain.spec.physicalClusters[0];
  const can = drainActions(drain);
  const path = `${GROUP}/drains/${name}`;
  const set = (spec) => () => patch(workspace, path, { spec });
  const forget = async () => {
    await remove(workspace, path);
    location.hash = href("drains");
  };
  return html`
    ${can.pause && html`<${Action} label="Pause" command=${`kubectl portolan drain ${shell(first)} --pause`} explain=${html`<p>Moves under way finish, and no other begins.</p>`} run=${set({ paused: true })} />`}
    ${can.resume && html`<${Action} label="Resume" primary command=${`kubectl portolan drain ${shell(first)} --resume`} explain=${html`<p>It goes on with its moves.</p>`} run=${set({ paused: false })} />`}
    ${can.abort && html`<${Action} label="Abort" danger command=${`kubectl portolan drain ${shell(first)} --abort`} explain=${html`<p>Moves under way finish, and nothing else moves. An abort cannot be taken back; an undo is possible afterwards.</p>`} run=${set({ abort: true })} />`}
    ${can.undo && html`<${Action} label="Undo" danger command=${`kubectl portolan drain ${shell(first)} --undo`} explain=${html`<p>Everything returns to where it was, within the budget. An undo cannot be taken back.</p>`} run=${set({ undo: true })} />`}
    ${["Completed", "Aborted", "Undone"].includes(phaseOf(drain)) && html`<${Action} label="Delete" command=${`kubectl delete drain ${shell(name)}`} explain=${html`<p>The physical clusters take new objects again. Nothing can be undone afterwards.</p>`} run=${forget} />`}`;
}

function phaseOf(drain) {
  return drain.status?.phase ?? "Planned";
}

function Content({ drain }) {
  const { spec, status = {} } = drain;
  const { counts = {} } = status;
  const report = status.report?.summary ? status.report : null;
  const rows = status.objects ?? [];
  const numbers = [["total", "Objects"], ["moving", "Moving"], ["moved", "Moved"], ["blocked", "Blocked"], ["skipped", "Skipped"], ["restored", "Returned"]];
  const download = () => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([JSON.stringify(drain, null, 2)], { type: "application/json" }));
    link.download = `drain-${drain.metadata.name}.json`;
    link.click();
    URL.revokeObjectURL(link.href);
  };
  return html`
    <div class="card"><${Progress} drain=${drain} />
      <dl class="facts">${numbers.map(([key, label]) => html`<div><dt>${label}</dt><dd>${counts[key] ?? 0}</dd></div>`)}
        <div><dt>Unavailable</dt><dd>${status.unavailableReplicas ?? 0} of ${spec.budget?.maxUnavailable ?? 1}</dd></div>
        <div><dt>Clusters</dt><dd>${spec.physicalClusters.join(", ")}</dd></div>
        <div><dt>Started</dt><dd>${status.startTime ? clock(status.startTime) : "not yet"}</dd></div>
        <div><dt>${status.completionTime ? "Ended" : "Expected end"}</dt><dd>${clock(status.completionTime ?? status.estimatedCompletionTime)}</dd></div></dl></div>
    ${report && html`<${Section} title="Report" actions=${html`<button type="button" title=${`kubectl get drain ${drain.metadata.name} -o json`} onClick=${download}>Download</button>`}>
      <p class="summary">${report.summary}</p>
      <p class="note">${report.seconds} s, at most ${report.mostUnavailable ?? 0} replicas unavailable${report.revision ? `, at revision ${report.revision}` : ""}.
        ${Object.keys(report.left ?? {}).length > 0 ? ` Left: ${Object.entries(report.left).map(([kind, number]) => `${number} ${kind}`).join(", ")}.` : " Nothing is left."}</p>
      ${(report.exceptions ?? []).length > 0 && html`<${Rows} label="Exceptions" rows=${report.exceptions} />`}<//>`}
    <${Section} title="Objects" note=${status.objectsOmitted ? `${rows.length} shown, ${status.objectsOmitted} omitted; those that need attention first` : "those that need attention first"}>
      <${Rows} label="Objects of the drain" rows=${rows} />
      <${Command} text=${`kubectl portolan drain ${shell(spec.physicalClusters[0])}`} /><//>`;
}

function Rows({ label, rows }) {
  return html`<${Table} label=${label} rows=${rows} empty="No object." columns=${[
    ["Object", (row) => html`${row.name}<span class="sub">${row.resource}</span>`],
    ["Workspace", (row) => `${row.workspace}${row.namespace ? ` / ${row.namespace}` : ""}`],
    ["State", (row) => html`<${Badge} tone=${ROW_TONES[row.state] ?? "plain"}>${row.state}<//>`],
    ["From", (row) => html`<${Copies} copies=${splitCopies(row.from)} empty="–" />`],
    ["To", (row) => html`<${Copies} copies=${splitCopies(row.to)} empty="–" />`],
    ["Waits for", (row) => (row.reason || row.message ? html`${row.reason && html`<strong>${row.reason}</strong>`} ${row.message}` : "–"), "wide"],
    ["Since", (row) => (row.since ? html`<${Age} time=${row.since} />` : "–"), "num"]]} />`;
}
