// Pure models of the pages: from objects of the API to rows.

/** Returns the condition of a type. */
export function condition(object, type) {
  return (object?.status?.conditions ?? []).find((one) => one.type === type);
}

const WORKSPACE = /^[a-z0-9]([-a-z0-9]*[a-z0-9])?(:[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$/;

/**
 * Parses a workspace and the rest of the page's state from the fragment of the URL. Text that is no path of a workspace
 * is none: it becomes part of the paths of requests.
 */
export function parseRoute(fragment) {
  const [path, search = ""] = fragment.replace(/^#\/?/, "").split("?");
  const [named, page, ...args] = path.split("/").map(decode);
  const workspace = WORKSPACE.test(named) ? named : "";
  return { workspace, page: page || "objects", args, query: Object.fromEntries(new URLSearchParams(search)) };
}

function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** Returns the fragment of a page's state. */
export function routeText({ workspace, page, args = [], query = {} }) {
  const path = [workspace, page, ...args].map((part) => encodeURIComponent(part).replaceAll("%3A", ":")).join("/");
  const set = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const search = new URLSearchParams(set).toString();
  return `#/${path}${search ? `?${search}` : ""}`;
}

/** State of a placement: a word, a tone and a sentence. */
export function placementState(placement) {
  const status = placement.status ?? {};
  const copies = status.clusters ?? [];
  const placed = condition(placement, "Placed");
  const leaving = copies.filter((copy) => copy.phase === "Leaving");
  const troubled = copies.find((copy) => copy.reason);
  const wanted = copies.reduce((sum, copy) => sum + (copy.phase === "Leaving" ? 0 : copy.desired ?? 0), 0);
  const ready = copies.reduce((sum, copy) => sum + (copy.phase === "Leaving" ? 0 : copy.ready ?? 0), 0);
  const message = status.waitingFor || placed?.message || "";
  if (placed && placed.status !== "True") {
    return { word: copies.length ? "Held" : "Not placed", tone: copies.length ? "warn" : "bad", message };
  }
  if (leaving.length || status.waitingFor) return { word: "Moving", tone: "info", message };
  if (troubled) return { word: troubled.reason, tone: "bad", message: `${troubled.name}: ${troubled.message ?? troubled.reason}` };
  if (wanted > ready) return { word: "Starting", tone: "warn", message: `${ready} of ${wanted} replicas are ready` };
  return { word: "Placed", tone: "ok", message };
}

const ORDER = { bad: 0, warn: 1, info: 2, ok: 3 };

/** Rows of the list of objects: those with trouble first, then by name. */
export function placementRows(placements) {
  const rows = placements.map((placement) => {
    const object = placement.spec?.object ?? {};
    const namespace = placement.metadata.namespace ?? "";
    const copies = placement.status?.clusters ?? [];
    const policy = policyName(placement.status?.policy);
    return {
      key: placement.metadata.uid ?? placement.metadata.name,
      namespace,
      object,
      copies,
      policy,
      state: placementState(placement),
      created: placement.metadata.creationTimestamp,
      order: `${namespace}/${object.kind}/${object.name}`,
      words: `${object.kind} ${object.name} ${namespace} ${copies.map((copy) => copy.name).join(" ")} ${policy}`.toLowerCase(),
    };
  });
  return rows.sort((a, b) => ORDER[a.state.tone] - ORDER[b.state.tone] || (a.order < b.order ? -1 : 1));
}

/** Rows that fit the filters of the page. */
export function filteredRows(rows, { text = "", namespace = "", state = "" }) {
  const wanted = text.toLowerCase();
  return rows.filter((row) => (!namespace || row.namespace === namespace) && (!state || row.state.tone === state) && row.words.includes(wanted));
}

/** Name of the policy that decided. */
export function policyName(policy) {
  if (!policy) return "default";
  const scope = policy.namespace ? `${policy.workspace}/${policy.namespace}` : policy.workspace;
  return `${policy.name} (${scope})`;
}

/** Matrix of an explanation: filters as columns, physical clusters as rows, chosen ones first. */
export function whyMatrix(status) {
  const clusters = status?.clusters ?? [];
  const filters = (clusters[0]?.verdicts ?? []).map((verdict) => verdict.filter);
  const rows = clusters.map((cluster) => {
    const verdicts = new Map((cluster.verdicts ?? []).map((verdict) => [verdict.filter, verdict]));
    const refusals = (cluster.verdicts ?? []).filter((verdict) => !verdict.passed && verdict.message);
    const messages = refusals.map((verdict) => verdict.message);
    if (!cluster.chosen && messages.length === 0 && cluster.message) messages.push(cluster.message);
    return {
      name: cluster.name,
      chosen: cluster.chosen === true,
      replicas: cluster.replicas,
      score: cluster.score,
      scores: cluster.scores ?? [],
      result: cluster.chosen ? "Chosen" : cluster.reason ?? "Not considered",
      messages,
      cells: filters.map((filter) => verdicts.get(filter)),
    };
  });
  rows.sort((a, b) => Number(b.chosen) - Number(a.chosen) || (a.name < b.name ? -1 : 1));
  return { filters, rows };
}

/** Rows of a plan: moves and splits together, those that decide before those that follow. */
export function planRows(status) {
  const rows = [
    ...(status.moves ?? []).map((row) => ({ ...row, type: row.follows ? "follows" : "moves" })),
    ...(status.splits ?? []).map((row) => ({ ...row, type: "splits" })),
  ];
  const rank = { moves: 0, splits: 1, follows: 2 };
  return rows.sort((a, b) => rank[a.type] - rank[b.type]);
}

/** Now and then of a plan, per physical cluster: the objects that it loses and gets, and its requests. */
export function planSides(status) {
  const sides = new Map();
  const side = (name) => {
    if (!sides.has(name)) sides.set(name, { name, leaves: 0, arrives: 0, before: {}, after: {}, allocatable: {}, bounds: {} });
    return sides.get(name);
  };
  for (const row of planRows(status)) {
    if (row.type === "follows") continue;
    const replicas = (copies) => new Map((copies ?? []).map((copy) => [copy.cluster, copy.replicas ?? 1]));
    const [from, to] = [replicas(row.from), replicas(row.to)];
    for (const name of new Set([...from.keys(), ...to.keys()])) {
      const change = (to.get(name) ?? 0) - (from.get(name) ?? 0);
      if (change < 0) side(name).leaves -= change;
      if (change > 0) side(name).arrives += change;
    }
  }
  for (const capacity of status.capacity ?? []) Object.assign(side(capacity.cluster), pick(capacity));
  return [...sides.values()].sort((a, b) => (a.name < b.name ? -1 : 1));
}

function pick({ before = {}, after = {}, allocatable = {}, bounds = {} }) {
  return { before, after, allocatable, bounds };
}

/** Number of nodes that the map draws at most. */
export const MAP_NODES = 300;

/**
 * Aggregates placements of workspaces to the three columns of the map. Beyond the bound, groups merge: by namespace,
 * then by workspace; groups with trouble stay apart.
 */
export function mapModel(workspaces, clusters, bound = MAP_NODES) {
  const levels = [
    (workspace, placement) => `${workspace}/${placement.metadata.namespace}/${placement.spec?.object?.kind}/${placement.spec?.object?.name}`,
    (workspace, placement) => `${workspace}/${placement.metadata.namespace}/${placement.spec?.object?.kind}`,
    (workspace, placement) => `${workspace}/${placement.metadata.namespace}`,
    (workspace) => workspace,
  ];
  const total = workspaces.reduce((sum, one) => sum + one.placements.length, 0);
  for (const [level, key] of levels.entries()) {
    const groups = new Map();
    for (const { workspace, placements } of workspaces) {
      for (const placement of placements) addToGroup(groups, key(workspace, placement), workspace, placement, level);
    }
    const fixed = workspaces.length + clusters.length;
    if (groups.size + fixed <= bound || level === levels.length - 1) {
      const all = [...groups.values()].sort((a, b) => ORDER[a.tone] - ORDER[b.tone] || (a.key < b.key ? -1 : 1));
      const shown = all.slice(0, Math.max(1, bound - fixed));
      shown.sort((a, b) => (a.key < b.key ? -1 : 1));
      return { groups: shown, hidden: all.length - shown.length, total, level };
    }
  }
  return { groups: [], hidden: 0, total, level: 0 };
}

function addToGroup(groups, key, workspace, placement, level) {
  const state = placementState(placement);
  const object = placement.spec?.object ?? {};
  let group = groups.get(key);
  if (!group) {
    const names = [`${object.kind} ${object.name}`, `${object.kind}s in ${placement.metadata.namespace}`, placement.metadata.namespace, workspace];
    group = { key, workspace, label: names[level], objects: 0, tone: "ok", moving: false, ribbons: new Map(), placement };
    groups.set(key, group);
  }
  group.objects += 1;
  group.moving ||= state.tone === "info";
  if (ORDER[state.tone] < ORDER[group.tone]) group.tone = state.tone;
  for (const copy of placement.status?.clusters ?? []) {
    const ribbon = group.ribbons.get(copy.name) ?? { cluster: copy.name, replicas: 0, ready: 0, leaving: false };
    ribbon.replicas += copy.replicas ?? copy.desired ?? 1;
    ribbon.ready += copy.ready ?? 0;
    ribbon.leaving ||= copy.phase === "Leaving";
    group.moving ||= copy.phase === "Leaving";
    group.ribbons.set(copy.name, ribbon);
  }
}

/** State of a physical cluster: a word, a tone and a sentence. */
export function clusterState(cluster) {
  const ready = condition(cluster, "Ready");
  const drain = cluster.status?.drain;
  if (cluster.metadata?.deletionTimestamp) return { word: "Leaving", tone: "info", message: "It is being removed." };
  if (ready?.status === "False") return { word: ready.reason || "Not ready", tone: "bad", message: ready.message ?? "" };
  if (!ready || ready.status === "Unknown") return { word: "Unknown", tone: "warn", message: ready?.message ?? "It has not reported yet." };
  if (drain) return { word: `Draining ${drain.done}/${drain.total}`, tone: "info", message: `By the drain ${drain.name}: ${drain.phase}.` };
  if (cluster.spec?.unschedulable) return { word: "Cordoned", tone: "warn", message: "It takes nothing new." };
  return { word: "Ready", tone: "ok", message: ready.message ?? "" };
}

/** Way to a physical cluster. */
export function connector(cluster) {
  const connection = cluster.spec?.connection ?? {};
  if (connection.simulated !== undefined) return "simulated";
  if (connection.tunnel !== undefined) return "agent";
  if (connection.direct !== undefined) return "direct";
  return cluster.metadata?.annotations?.["portolan.dev/mode"] ?? "inherited";
}

/** End of the credentials for a physical cluster. */
export function credentials(cluster, now = Date.now()) {
  const way = connector(cluster);
  if (way === "agent") return "renewed by the agent";
  if (way !== "direct") return "none";
  const end = cluster.metadata?.annotations?.["portolan.dev/credentials-expire"];
  if (!end) return "unknown";
  if (end === "never") return "without an end";
  const days = Math.floor((Date.parse(end) - now) / 86_400_000);
  return days < 0 ? `ended ${end.slice(0, 10)}` : `end in ${days} d`;
}

/** Workspace in which a physical cluster is registered, as one below it sees it; empty for the same one. */
export function homeOf(cluster) {
  return cluster?.metadata?.annotations?.["portolan.dev/workspace"] ?? "";
}

/** Copies of a split in words, such as `eu-1=3,us-1=3`. */
export function splitCopies(text) {
  return (text ?? "").split(",").filter(Boolean).map((one) => {
    const [cluster, replicas] = one.split("=");
    return { cluster, replicas: replicas === undefined ? undefined : Number(replicas) };
  });
}

/** Tone of a drain's phase. */
export function drainTone(phase) {
  return { Completed: "ok", Undone: "ok", Running: "info", Paused: "warn", Blocked: "bad", Aborted: "warn" }[phase] ?? "plain";
}

/** Actions that a drain allows now. */
export function drainActions(drain) {
  const phase = drain.status?.phase ?? "Planned";
  const { paused, abort, undo } = drain.spec ?? {};
  const started = Boolean(drain.status?.startTime);
  const over = ["Completed", "Aborted", "Undone"].includes(phase);
  return {
    pause: !over && !abort && !paused,
    resume: !over && !abort && Boolean(paused),
    abort: !over && !abort && !undo,
    undo: started && !undo,
  };
}

/** Claims of a binding when all that its export makes are accepted; answers that are there stay. */
export function claimsAccepted(binding) {
  const answered = binding.spec?.permissionClaims ?? [];
  const same = (one, other) => one.resource === other.resource && (one.group ?? "") === (other.group ?? "");
  const open = (binding.status?.exportPermissionClaims ?? []).filter((claim) => !answered.some((one) => same(one, claim)));
  return [...answered, ...open.map((claim) => ({ ...claim, selector: { matchAll: true }, state: "Accepted" }))];
}
