// Objects of a workspace with their placements.
import { useMemo } from "./vendor/hooks.js";
import { GROUP } from "./api.js";
import { count } from "./format.js";
import { useLive, useTicks } from "./live.js";
import { filteredRows, placementRows } from "./model.js";
import { Age, Badge, Choice, Command, Copies, html, ListBody, ObjectLink, Page, Search, Table } from "./parts.js";
import { route } from "./route.js";

const STATES = [["", "All states"], ["bad", "With trouble"], ["warn", "Not complete"], ["info", "Moving"], ["ok", "Placed"]];

export function ObjectsPage() {
  useTicks(5000);
  const { workspace, query } = route.value;
  const list = useLive(workspace, `${GROUP}/placements`);
  const all = useMemo(() => placementRows(list.items), [list.items]);
  const rows = useMemo(() => filteredRows(all, { text: query.q, namespace: query.namespace, state: query.state }), [all, query]);
  const namespaces = useMemo(() => [...new Set(all.map((row) => row.namespace))].sort(), [all]);
  const tones = ["bad", "warn", "info", "ok"].map((tone) => [tone, all.filter((row) => row.state.tone === tone).length]);
  return html`<${Page} title="Objects" lists=${[list]} crumbs=${[[workspace, `#/${workspace}/workspaces`]]}>
    <${ListBody} list=${list} doing="You may not list the placements of this workspace. Open an object by its URL, or ask for the role view."
      empty=${html`<h2>Nothing is placed here yet</h2><p>Apply a workload as against any cluster; it appears here with its physical clusters:</p><${Command} text="kubectl create deployment web --image=nginx --replicas=2" />`}>
      <ul class="tiles" aria-label="States">${tones.map(([tone, number]) => html`<li><a href=${`#/${workspace}/objects?state=${tone}`} class=${`tile ${number ? tone : "zero"}`}><strong>${number}</strong> ${STATES.find(([key]) => key === tone)[1].toLowerCase()}</a></li>`)}</ul>
      <div class="filters">
        <${Search} label="Find by name, kind, cluster or policy" />
        <${Choice} name="namespace" label="Namespace" options=${[["", "All"], ...namespaces.map((name) => [name, name])]} />
        <${Choice} name="state" label="State" options=${STATES} />
        <span class="note">${count(rows.length, "object")}${list.truncated ? ", the first of more" : ""}</span>
      </div>
      <${Table} label="Objects" rows=${rows} keyOf=${(row) => row.key} empty="No object fits the filters." columns=${[
        ["Object", (row) => html`<${ObjectLink} object=${row.object} namespace=${row.namespace} /><span class="sub">${row.object.kind}</span>`],
        ["Namespace", (row) => row.namespace],
        ["State", (row) => html`<${Badge} tone=${row.state.tone}>${row.state.word}<//>`],
        ["Runs on", (row) => html`<${Copies} copies=${row.copies} />`],
        ["Policy", (row) => row.policy],
        ["Age", (row) => html`<${Age} time=${row.created} />`, "num"],
      ]} />
    <//>
  <//>`;
}
