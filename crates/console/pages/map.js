// Map: workspaces, what is placed in them, and the physical clusters; and the same as a table.
import { useEffect, useState } from "./vendor/hooks.js";
import { get, GROUP } from "./api.js";
import { count } from "./format.js";
import { LiveList, useAsked, useLive } from "./live.js";
import { clusterState, mapModel, MAP_NODES } from "./model.js";
import { Badge, html, ListBody, Page, Table } from "./parts.js";
import { href, route, setQuery } from "./route.js";

/** Most workspaces that the map follows. */
const WORKSPACES = 20;
/** Height of a node with its gap. */
const ROW = 34;
const COLUMNS = [{ x: 8, width: 170 }, { x: 320, width: 230 }, { x: 740, width: 190 }];
const WIDTH = 940;

const WORDS = { ok: "healthy", warn: "not complete", bad: "trouble", info: "moving" };

/** Lists the workspaces below one, breadth first, as far as the user may. */
async function below(root) {
  const found = [root];
  for (let at = 0; at < found.length && found.length < WORKSPACES; at += 1) {
    const list = await get(found[at], "/apis/tenancy.kcp.io/v1alpha1/workspaces?limit=100").catch(() => ({ items: [] }));
    for (const item of list.items) if (item.status?.phase === "Ready") found.push(`${found[at]}:${item.metadata.name}`);
  }
  return { paths: found.slice(0, WORKSPACES), more: found.length > WORKSPACES };
}

/** Follows the placements of several workspaces. */
function usePlacements(paths) {
  const [shown, show] = useState(new Map());
  useEffect(() => {
    const lists = paths.map((path) => {
      const list = new LiveList(path, `${GROUP}/placements`, {});
      list.users.add((state) => show((before) => new Map(before).set(path, state)));
      return list;
    });
    return () => lists.forEach((list) => list.abort.abort());
  }, [paths.join(" ")]);
  return shown;
}

export function MapPage() {
  const { workspace, query } = route.value;
  const asked = useAsked(() => below(workspace), [workspace]);
  const paths = asked.value?.paths ?? [];
  const lists = usePlacements(paths);
  const clusters = useLive(workspace, `${GROUP}/physicalclusters`);
  const seen = paths.map((path) => ({ workspace: path, list: lists.get(path) })).filter((one) => one.list);
  const readable = seen.filter((one) => one.list.state !== "refused");
  const hidden = seen.length - readable.length;
  const filled = readable.filter((one) => one.list.items.length > 0).map((one) => ({ workspace: one.workspace, placements: one.list.items }));
  const names = clusterNames(filled, clusters.items);
  const model = mapModel(filled, names);
  const table = query.view ? query.view === "table" : matchMedia("(max-width: 640px)").matches;
  const states = new Map(clusters.items.map((one) => [one.metadata.name, clusterState(one)]));
  const notes = [model.level > 0 && `${count(model.total, "object")}, merged to ${model.groups.length} groups`, model.hidden > 0 && `showing ${model.groups.length} of ${model.groups.length + model.hidden} groups, those with trouble first`,
    hidden > 0 && `${count(hidden, "workspace")} that you may not see`, asked.value?.more && `the first ${WORKSPACES} workspaces`, readable.some((one) => one.list.truncated) && "the first 10,000 objects of a workspace"].filter(Boolean);
  const toggle = html`<button type="button" aria-pressed=${table} onClick=${() => setQuery({ view: table ? "map" : "table" })}>${table ? "Show as a map" : "Show as a table"}</button>`;
  const all = { state: seen.length ? readable[0]?.list.state ?? "refused" : "loading", items: filled, error: seen[0]?.list.error };
  return html`<${Page} title="Map" lists=${[...readable.map((one) => one.list), clusters]} actions=${toggle} crumbs=${[[workspace, href("objects")]]}>
    <${ListBody} list=${all} empty=${html`<h2>Nothing is placed here yet</h2><p>Workspaces, their objects and the physical clusters that run them appear here.</p>`} doing="You may not list the placements of this workspace.">
      <p class="legend"><${Badge} tone="ok">healthy<//> <${Badge} tone="warn">not complete<//> <${Badge} tone="bad">trouble<//> <${Badge} tone="info">moving, draining: hatched<//> <span class="note">Width: replicas. ${notes.join("; ")}</span></p>
      ${table ? html`<${MapTable} model=${model} />` : html`<${Drawing} model=${model} names=${names} states=${states} workspaces=${filled.map((one) => one.workspace)} />`}
    <//>
  <//>`;
}

/** Names of the clusters that are registered or hold a copy. */
function clusterNames(filled, clusters) {
  const names = new Set(clusters.map((one) => one.metadata.name));
  for (const { placements } of filled) for (const one of placements) for (const copy of one.status?.clusters ?? []) names.add(copy.name);
  return [...names].sort().slice(0, MAP_NODES / 3);
}

function MapTable({ model }) {
  const rows = model.groups.flatMap((group) => [...group.ribbons.values()].map((ribbon) => ({ group, ribbon })).concat(group.ribbons.size ? [] : [{ group }]));
  return html`<div class="card flush"><${Table} label="Map as a table" rows=${rows} columns=${[
    ["Workspace", (row) => row.group.workspace],
    ["Objects", (row) => html`<a href=${linkOf(row.group)}>${row.group.label}</a>${row.group.objects > 1 ? ` (${row.group.objects})` : ""}`],
    ["State", (row) => html`<${Badge} tone=${row.group.tone}>${WORDS[row.group.tone]}<//>`],
    ["Cluster", (row) => row.ribbon?.cluster ?? "nowhere"],
    ["Replicas", (row) => (row.ribbon ? `${row.ribbon.ready} of ${row.ribbon.replicas}` : "–"), "num"],
    ["", (row) => (row.ribbon?.leaving ? "leaving" : "")]]} /></div>`;
}

function linkOf(group) {
  if (group.objects !== 1) return href("objects", [], { namespace: group.placement.metadata.namespace }, group.workspace);
  const { apiVersion, kind, name } = group.placement.spec.object;
  return href("object", [apiVersion.replace("/", "~"), kind, group.placement.metadata.namespace, name], {}, group.workspace);
}

function Drawing({ model, names, states, workspaces }) {
  const rows = Math.max(workspaces.length, model.groups.length, names.length, 1);
  const height = rows * ROW + 12;
  const place = (total) => (at) => 6 + ((at + 0.5) * (height - 12)) / total;
  const [workspaceAt, groupAt, clusterAt] = [place(workspaces.length), place(model.groups.length), place(names.length)];
  const ribbons = [];
  model.groups.forEach((group, at) => {
    ribbons.push({ tone: "plain", from: at, to: workspaces.indexOf(group.workspace), width: 2, key: `w${group.key}` });
    for (const ribbon of group.ribbons.values()) {
      const tone = ribbon.leaving ? "info" : ribbon.ready < ribbon.replicas ? (group.tone === "ok" ? "warn" : group.tone) : "ok";
      ribbons.push({ tone, leaving: ribbon.leaving, from: at, to: names.indexOf(ribbon.cluster), width: Math.min(16, 2 + 2 * Math.log2(1 + ribbon.replicas)), key: `${group.key} ${ribbon.cluster}`,
        title: `${group.label} on ${ribbon.cluster}: ${ribbon.ready} of ${ribbon.replicas}${ribbon.leaving ? ", leaving" : ""}` });
    }
  });
  const [owned, placed] = [ribbons.filter((one) => one.tone === "plain"), ribbons.filter((one) => one.tone !== "plain" && one.to >= 0)];
  const ends = { workspaces: spread(owned, "to"), groups: spread(placed, "from"), clusters: spread(placed, "to") };
  for (const one of owned) one.path = curve(COLUMNS[0], workspaceAt(one.to) + ends.workspaces.get(one), COLUMNS[1], groupAt(one.from));
  for (const one of placed) one.path = curve(COLUMNS[1], groupAt(one.from) + ends.groups.get(one), COLUMNS[2], clusterAt(one.to) + ends.clusters.get(one));
  return html`<div class="map-wrap card flush" tabindex="0" role="region" aria-label="Map. The same is shown as a table by the button above.">
    <svg class="map" viewBox=${`0 0 ${WIDTH} ${height}`} role="group" aria-label=${`${count(workspaces.length, "workspace")}, ${count(model.groups.length, "group")}, ${count(names.length, "physical cluster")}`}>
      <defs><pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><rect width="6" height="6" class="hatch-back" /><rect width="2.5" height="6" class="hatch-line" /></pattern></defs>
      <g aria-hidden="true">${[...owned, ...placed].map((one) => html`<path key=${one.key} d=${one.path} class=${`ribbon ${one.tone}${one.leaving ? " leaving" : ""}`} stroke-width=${one.width}>${one.title && html`<title>${one.title}</title>`}</path>`)}</g>
      ${workspaces.map((path, at) => html`<${Node} key=${path} column=${COLUMNS[0]} y=${workspaceAt(at)} label=${path} address=${href("objects", [], {}, path)} tone="plain" />`)}
      ${model.groups.map((group, at) => html`<${Node} key=${group.key} column=${COLUMNS[1]} y=${groupAt(at)} label=${group.label} sub=${group.objects > 1 ? String(group.objects) : ""} address=${linkOf(group)} tone=${group.tone} hatched=${group.moving} />`)}
      ${names.map((name, at) => html`<${Node} key=${name} column=${COLUMNS[2]} y=${clusterAt(at)} label=${name} sub=${states.get(name)?.word ?? ""} address=${href("clusters", [], { q: name })} tone=${states.get(name)?.tone ?? "plain"} hatched=${/Drain|Cordon/.test(states.get(name)?.word ?? "")} />`)}
    </svg></div>`;
}

/** Spreads the ends of ribbons over the height of their node, in the order of their other ends. */
function spread(ribbons, end) {
  const offsets = new Map();
  const nodes = new Map();
  for (const one of ribbons) nodes.set(one[end], [...(nodes.get(one[end]) ?? []), one]);
  for (const own of nodes.values()) {
    const most = own.reduce((sum, one) => sum + one.width, 0);
    const scale = Math.min(1, 22 / most);
    let used = (-most * scale) / 2;
    for (const one of own) {
      offsets.set(one, used + (one.width * scale) / 2);
      used += one.width * scale;
    }
  }
  return offsets;
}

function curve(from, y1, to, y2) {
  const x1 = from.x + from.width;
  const middle = (x1 + to.x) / 2;
  return `M${x1} ${y1}C${middle} ${y1} ${middle} ${y2} ${to.x} ${y2}`;
}

const SYMBOLS = { ok: "●", info: "◐", warn: "▲", bad: "✕", plain: "" };

function Node({ column, y, label, sub, address, tone, hatched }) {
  const most = Math.floor(column.width / 7.4) - (sub ? sub.length + 3 : 2);
  const short = label.length > most ? `${label.slice(0, most - 1)}…` : label;
  return html`<a href=${address}><title>${label}${tone === "plain" ? "" : `, ${WORDS[tone]}`}</title>
    <rect x=${column.x} y=${y - 13} width=${column.width} height="26" rx="6" class=${`node ${tone}`} fill=${hatched ? "url(#hatch)" : undefined} />
    <text x=${column.x + 10} y=${y + 4} class="node-label">${SYMBOLS[tone] && html`<tspan aria-hidden="true" class=${`node-mark ${tone}`}>${SYMBOLS[tone]} </tspan>`}${short}</text>
    ${sub && html`<text x=${column.x + column.width - 8} y=${y + 4} text-anchor="end" class="node-sub">${sub}</text>`}</a>`;
}
