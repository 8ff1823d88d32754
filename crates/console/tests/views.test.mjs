// Unit tests of the pure view logic: `node --test crates/console/tests/`.
import assert from "node:assert/strict";
import { test } from "node:test";
import { age, amount, appendLog, claims, document, EMPTY_LOG, logText, quantity, shell, tokenHints, yaml } from "../pages/format.js";
import {
  claimsAccepted, clusterState, connector, credentials, drainActions, filteredRows, mapModel, parseRoute, placementRows, placementState, planRows, planSides, routeText, whyMatrix,
} from "../pages/model.js";

const placement = (name, status = {}, namespace = "default") => ({
  metadata: { name, namespace, uid: `u-${namespace}-${name}` },
  spec: { object: { apiVersion: "apps/v1", kind: "Deployment", name } },
  status,
});
const copy = (name, ready, desired, more = {}) => ({ name, phase: "Active", ready, desired, ...more });

test("ages are those of kubectl", () => {
  const now = Date.parse("2026-11-27T12:00:00Z");
  for (const [time, expected] of [["2026-11-27T11:59:48Z", "12s"], ["2026-11-27T11:55:00Z", "5m"], ["2026-11-27T03:00:00Z", "9h"], ["2026-11-20T12:00:00Z", "7d"], ["2026-11-27T12:00:09Z", "0s"], ["", "–"], ["soon", "–"]]) {
    assert.equal(age(time, now), expected, time);
  }
});

test("quantities are parsed and formatted", () => {
  for (const [text, expected] of [["100m", 0.1], ["2", 2], ["1.5", 1.5], ["64Mi", 64 * 2 ** 20], ["1e3", 1000], ["3k", 3000], ["", null], [undefined, null], ["x", null], ["1X", null], ["1.2.3", null]]) {
    assert.equal(quantity(text), expected, String(text));
  }
  assert.equal(amount(quantity("3Gi"), "memory"), "3 GiB");
  assert.equal(amount(quantity("1500m"), "cpu"), "1.5 CPU");
  assert.equal(amount(null, "cpu"), "–");
});

test("objects become YAML that a server parses", () => {
  const text = document({ apiVersion: "a/v1", kind: "P", metadata: { name: "x", uid: "1", managedFields: [{}] }, spec: { list: [{ a: 1, b: ["c: d", "true", ""] }, "e"], none: [], map: {}, n: null }, status: {} });
  assert.equal(text, 'apiVersion: a/v1\nkind: P\nmetadata:\n  name: x\nspec:\n  list:\n  - a: 1\n    b:\n    - "c: d"\n    - "true"\n    - ""\n  - e\n  none: []\n  map: {}\n  "n": null\n');
  assert.equal(yaml("a"), " a\n");
});

test("arguments are quoted for a shell", () => {
  for (const [text, expected] of [["web", "web"], ["a b", "'a b'"], ["it's", "'it'\\''s'"], ["", "''"]]) assert.equal(shell(text), expected);
});

test("a log is bounded, also one without line ends", () => {
  const bounds = { lines: 3, line: 10, all: 25 };
  const read = (...chunks) => chunks.reduce((log, text) => appendLog(log, text, bounds), EMPTY_LOG);
  assert.equal(logText(read("a\nb", "c\nd")), "a\nbc\nd", "lines may come in parts");
  assert.equal(logText(read("1\n2\n3\n4\n5\n")), "3\n4\n5");
  assert.equal(logText(read("x".repeat(30), "y".repeat(30), "\nend")), `${"x".repeat(10)}…\nend`);
  const endless = read(...Array.from({ length: 100 }, () => "z".repeat(1000)));
  assert.equal(endless.rest.length, 11, "a line without end does not grow");
  const wide = read(`${"a".repeat(10)}\n${"b".repeat(10)}\n${"c".repeat(10)}\n`);
  assert.equal(logText(wide), `${"b".repeat(10)}\n${"c".repeat(10)}`);
  assert.equal(wide.size, wide.lines.join("").length);
});

test("the claims of a refused token say why", () => {
  const token = (body) => `e30.${Buffer.from(JSON.stringify(body)).toString("base64url")}.sig`;
  assert.deepEqual(claims(token({ sub: "änn" })), { sub: "änn" });
  assert.equal(claims("abc"), null);
  assert.match(tokenHints(token({ iss: "https://a", exp: 1 }), 1e12).join(" "), /issuer is https:\/\/a.*expired/);
  assert.match(tokenHints("abc").join(" "), /no JSON Web Token/);
});

test("the URL holds the state of a page", () => {
  const state = { workspace: "root:shop", page: "object", args: ["apps~v1", "Deployment", "default", "a/b %"], query: { q: "x y", empty: "" } };
  const text = routeText(state);
  assert.equal(text, "#/root:shop/object/apps~v1/Deployment/default/a%2Fb%20%25?q=x+y");
  assert.deepEqual(parseRoute(text), { ...state, query: { q: "x y" } });
  assert.deepEqual(parseRoute(""), { workspace: "", page: "objects", args: [], query: {} });
  assert.deepEqual(parseRoute("#/root/x/%").args, ["%"], "a damaged escape is kept");
});

test("a placement has one state", () => {
  const not = { type: "Placed", status: "False", reason: "NoClusterFits", message: "0 of 3 fit" };
  for (const [name, status, word, tone] of [
    ["all copies are ready", { clusters: [copy("a", 2, 2)] }, "Placed", "ok"],
    ["some replicas are missing", { clusters: [copy("a", 1, 2)] }, "Starting", "warn"],
    ["a copy leaves", { clusters: [copy("a", 2, 2), copy("b", 1, 2, { phase: "Leaving" })] }, "Moving", "info"],
    ["it waits for its next step", { clusters: [copy("a", 2, 2)], waitingFor: "b to be ready" }, "Moving", "info"],
    ["nothing fits", { conditions: [not] }, "Not placed", "bad"],
    ["it stays although nothing fits", { clusters: [copy("a", 2, 2)], conditions: [not] }, "Held", "warn"],
    ["a copy has trouble", { clusters: [copy("a", 0, 2, { reason: "Conflict", message: "it is another's" })] }, "Conflict", "bad"],
    ["it has no status yet", {}, "Placed", "ok"],
  ]) {
    const state = placementState(placement("web", status));
    assert.deepEqual([state.word, state.tone], [word, tone], name);
  }
});

test("objects with trouble come first, and filters hold", () => {
  const list = [placement("b", { clusters: [copy("eu-1", 1, 1)] }), placement("a", { clusters: [copy("us-1", 1, 1)] }), placement("z", { conditions: [{ type: "Placed", status: "False" }] }, "other")];
  const names = (filter) => filteredRows(placementRows(list), filter).map((row) => row.object.name);
  assert.deepEqual(names({}), ["z", "a", "b"]);
  assert.deepEqual(names({ text: "EU-1" }), ["b"]);
  assert.deepEqual(names({ namespace: "other" }), ["z"]);
  assert.deepEqual(names({ state: "ok" }), ["a", "b"]);
});

test("the matrix has a row per cluster and a column per filter", () => {
  const verdicts = (passed) => [{ filter: "ready", passed: true }, { filter: "cordon", passed, reason: "Cordoned", message: "it is cordoned" }];
  const { filters, rows } = whyMatrix({ clusters: [{ name: "a", chosen: false, reason: "Cordoned", score: 1, verdicts: verdicts(false) }, { name: "b", chosen: true, replicas: 3, score: 2, verdicts: verdicts(true) }, { name: "c", chosen: false, message: "it is not needed", verdicts: verdicts(true) }] });
  assert.deepEqual(filters, ["ready", "cordon"]);
  assert.deepEqual(rows.map((row) => [row.name, row.result, row.messages.join()]), [["b", "Chosen", ""], ["a", "Cordoned", "it is cordoned"], ["c", "Not considered", "it is not needed"]]);
  assert.deepEqual(whyMatrix(undefined), { filters: [], rows: [] });
});

test("a plan has its moves before what follows, and both sides per cluster", () => {
  const status = {
    moves: [{ follows: true, from: [], to: [] }, { from: [{ cluster: "a", replicas: 3 }], to: [{ cluster: "b", replicas: 2 }, { cluster: "a", replicas: 1 }] }],
    splits: [{ from: [{ cluster: "a", replicas: 2 }], to: [{ cluster: "a", replicas: 1 }] }],
    capacity: [{ cluster: "c", before: { cpu: "1" }, after: { cpu: "2" } }],
  };
  assert.deepEqual(planRows(status).map((row) => row.type), ["moves", "splits", "follows"]);
  const sides = planSides(status);
  assert.deepEqual(sides.map(({ name, leaves, arrives }) => [name, leaves, arrives]), [["a", 3, 0], ["b", 0, 2], ["c", 0, 0]]);
  assert.equal(sides[2].after.cpu, "2");
});

test("the map stays within its bound and keeps trouble", () => {
  const many = Array.from({ length: 10_000 }, (_, at) => placement(`d${at}`, { clusters: [copy(`c${at % 3}`, 1, 1)] }, `ns-${at % 40}`));
  many[7].status.conditions = [{ type: "Placed", status: "False" }];
  const model = mapModel([{ workspace: "root", placements: many }], ["c0", "c1", "c2"]);
  assert.equal(model.level, 1, "merged by namespace and kind");
  assert.equal(model.groups.length, 40);
  assert.equal(model.groups.reduce((sum, group) => sum + group.objects, 0), 10_000);
  assert.equal(model.groups.find((group) => group.key.includes("ns-7/")).tone, "warn");
  const few = mapModel([{ workspace: "root", placements: many.slice(0, 5) }], ["c0"]);
  assert.deepEqual([few.level, few.groups.length, few.hidden], [0, 5, 0]);
  assert.ok(few.groups.every((group) => !group.moving));
  const moves = mapModel([{ workspace: "root", placements: [placement("m", { clusters: [copy("c0", 1, 1)], waitingFor: "c1" })] }], ["c0"]);
  assert.ok(moves.groups[0].moving, "what waits for its next step is hatched, too");
  const wide = Array.from({ length: 1000 }, (_, at) => ({ workspace: `w${at}`, placements: [many[at]] }));
  const bounded = mapModel(wide, ["c0"]);
  assert.ok(bounded.groups.length >= 1 && bounded.hidden > 0);
});

test("claims that are not answered yet are accepted, others stay", () => {
  const secrets = { group: "", resource: "secrets", verbs: ["get"] };
  const rejected = { resource: "configmaps", verbs: ["*"], state: "Rejected", selector: { matchAll: true } };
  const binding = { spec: { permissionClaims: [rejected] }, status: { exportPermissionClaims: [{ group: "", resource: "configmaps", verbs: ["*"] }, secrets] } };
  assert.deepEqual(claimsAccepted(binding), [rejected, { ...secrets, selector: { matchAll: true }, state: "Accepted" }]);
  assert.deepEqual(claimsAccepted({}), []);
});

test("physical clusters have one state and one connection", () => {
  const cluster = (status, spec = {}) => ({ metadata: {}, spec, status });
  const ready = { conditions: [{ type: "Ready", status: "True" }] };
  for (const [object, word] of [
    [cluster(ready), "Ready"],
    [cluster(ready, { unschedulable: true }), "Cordoned"],
    [cluster({ ...ready, drain: { name: "d", phase: "Running", done: 1, total: 2 } }), "Draining 1/2"],
    [cluster({ conditions: [{ type: "Ready", status: "False", reason: "Unreachable" }] }), "Unreachable"],
    [cluster({}), "Unknown"],
    [{ ...cluster(ready), metadata: { deletionTimestamp: "x" } }, "Leaving"],
  ]) assert.equal(clusterState(object).word, word);
  assert.equal(connector(cluster({}, { connection: { tunnel: {} } })), "agent");
  assert.equal(connector(cluster({}, {})), "inherited");
  const direct = (end) => ({ ...cluster({}, { connection: { direct: {} } }), metadata: { annotations: { "portolan.dev/credentials-expire": end } } });
  const now = Date.parse("2026-11-28T00:00:00Z");
  for (const [object, text] of [
    [direct("2026-12-08T00:00:00Z"), "end in 10 d"],
    [direct("2026-11-01T00:00:00Z"), "ended 2026-11-01"],
    [direct("never"), "without an end"],
    [direct(undefined), "unknown"],
    [cluster({}, { connection: { tunnel: {} } }), "renewed by the agent"],
    [cluster({}, { connection: { simulated: {} } }), "none"],
  ]) assert.equal(credentials(object, now), text);
});

test("a drain allows what its phase allows", () => {
  const actions = (phase, spec = {}, startTime = "x") => Object.entries(drainActions({ spec, status: { phase, startTime } })).filter(([, can]) => can).map(([name]) => name);
  assert.deepEqual(actions("Running"), ["pause", "abort", "undo"]);
  assert.deepEqual(actions("Paused", { paused: true }), ["resume", "abort", "undo"]);
  assert.deepEqual(actions("Completed"), ["undo"]);
  assert.deepEqual(actions("Undone", { undo: true }), []);
  assert.deepEqual(actions("Planned", { paused: true }, ""), ["resume", "abort"]);
});
