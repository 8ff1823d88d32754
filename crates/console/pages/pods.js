// Pods of an object with their logs, and its events.
import { useEffect, useRef, useState } from "./vendor/hooks.js";
import { stream } from "./api.js";
import { appendLog, EMPTY_LOG, logText, shell } from "./format.js";
import { useLive } from "./live.js";
import { Age, Badge, Command, html, ListBody, Problem, Section, Table } from "./parts.js";
import { route, setQuery } from "./route.js";

/** Returns the text of a label selector; `null` for an object that selects no pods. */
export function selectorText(object) {
  const selector = object.kind === "ReplicationController" ? { matchLabels: object.spec?.selector } : object.spec?.selector;
  if (!selector?.matchLabels && !selector?.matchExpressions) return null;
  const terms = Object.entries(selector.matchLabels ?? {}).map(([key, value]) => `${key}=${value}`);
  for (const { key, operator, values = [] } of selector.matchExpressions ?? []) {
    const words = { In: `${key} in (${values})`, NotIn: `${key} notin (${values})`, Exists: key, DoesNotExist: `!${key}` };
    terms.push(words[operator]);
  }
  return terms.join(",");
}

/** State of a pod: a word and a tone. */
export function podState(pod) {
  if (pod.metadata.deletionTimestamp) return { word: "Terminating", tone: "info" };
  const statuses = pod.status?.containerStatuses ?? [];
  const waiting = statuses.map((one) => one.state?.waiting?.reason).find((reason) => reason && reason !== "ContainerCreating" && reason !== "PodInitializing");
  if (waiting) return { word: waiting, tone: "bad" };
  const phase = pod.status?.phase ?? "Unknown";
  const ready = statuses.length > 0 && statuses.every((one) => one.ready);
  const tones = { Running: ready ? "ok" : "warn", Succeeded: "ok", Pending: "warn", Failed: "bad" };
  return { word: phase, tone: tones[phase] ?? "plain" };
}

export function Pods({ object, of }) {
  const { workspace, query } = route.value;
  const isPod = of.kind === "Pod";
  const selector = selectorText(object);
  const path = `/api/v1/namespaces/${of.namespace}/pods`;
  const list = useLive(workspace, isPod || selector ? path : "", isPod ? { fieldSelector: `metadata.name=${of.name}` } : { labelSelector: selector ?? "" });
  if (!isPod && !selector) return null;
  const rows = [...list.items].sort((a, b) => (a.metadata.name < b.metadata.name ? -1 : 1));
  const restarts = (pod) => (pod.status?.containerStatuses ?? []).reduce((sum, one) => sum + (one.restartCount ?? 0), 0);
  const chosen = rows.find((pod) => pod.metadata.name === query.logs);
  return html`<${Section} title="Pods" note="of all physical clusters">
    <${ListBody} list=${list} empty="It has no pods." doing="You may not list pods in this namespace.">
      <${Table} label="Pods" rows=${rows} keyOf=${(pod) => pod.metadata.name} columns=${[
        ["Pod", (pod) => pod.metadata.name],
        ["State", (pod) => { const state = podState(pod); return html`<${Badge} tone=${state.tone}>${state.word}<//>`; }],
        ["Cluster", (pod) => pod.metadata.labels?.["portolan.dev/cluster"] ?? "–"],
        ["Restarts", restarts, "num"],
        ["Age", (pod) => html`<${Age} time=${pod.metadata.creationTimestamp} />`, "num"],
        ["", (pod) => html`<button type="button" class="quiet" title=${`kubectl logs -f ${pod.metadata.name} -n ${of.namespace}`} aria-label=${`Logs of ${pod.metadata.name}`} onClick=${() => setQuery({ logs: pod.metadata.name, container: "" })}>Logs</button>`, "num"],
      ]} />
      ${chosen && html`<${Logs} key=${chosen.metadata.name} pod=${chosen} />`}
    <//>
  <//>`;
}

function Logs({ pod }) {
  const { workspace, query } = route.value;
  const { name, namespace } = pod.metadata;
  const containers = [...(pod.spec.containers ?? []), ...(pod.spec.initContainers ?? [])].map((one) => one.name);
  const container = containers.includes(query.container) ? query.container : containers[0];
  const [follow, setFollow] = useState(true);
  const [log, show] = useState(EMPTY_LOG);
  const [ended, end] = useState("");
  const [failure, fail] = useState(null);
  const box = useRef(null);
  useEffect(() => {
    const abort = new AbortController();
    show(EMPTY_LOG);
    end("");
    fail(null);
    read(abort).catch((error) => error.name !== "AbortError" && fail(error));
    return () => abort.abort();
  }, [container, follow]);
  const read = async (abort) => {
    const search = new URLSearchParams({ container, tailLines: "500", ...(follow && { follow: "true" }) });
    const response = await stream(workspace, `/api/v1/namespaces/${namespace}/pods/${name}/log?${search}`, abort.signal, "*/*");
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      show((before) => appendLog(before, value));
    }
    end("The stream has ended.");
  };
  useEffect(() => {
    if (follow && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [log]);
  return html`<div class="logs">
    <div class="card-head"><h3>Logs of ${name}</h3><span class="spring"></span>
      ${containers.length > 1 && html`<label class="choice">Container <select value=${container} onChange=${(e) => setQuery({ container: e.target.value })}>${containers.map((one) => html`<option value=${one} selected=${one === container}>${one}</option>`)}</select></label>`}
      <label class="check"><input type="checkbox" checked=${follow} onChange=${(e) => setFollow(e.target.checked)} /> Follow</label>
      <button type="button" class="quiet" onClick=${() => setQuery({ logs: "", container: "" })}>Close</button></div>
    ${failure && html`<${Problem} error=${failure} doing="You may not read logs in this namespace." />`}
    <pre ref=${box} tabindex="0" role="log" aria-label=${`Logs of ${name}`}>${logText(log) || "No output yet."}</pre>
    ${ended && html`<p class="note">${ended}</p>`}
    <${Command} text=${`kubectl logs ${follow ? "-f " : ""}${shell(name)} -n ${shell(namespace)} -c ${shell(container)}`} />
    <${Command} text=${`kubectl exec -it ${shell(name)} -n ${shell(namespace)} -c ${shell(container)} -- sh`} />
  </div>`;
}

export function Events({ of, command }) {
  const { workspace } = route.value;
  const list = useLive(workspace, of.namespace && `/api/v1/namespaces/${of.namespace}/events`, { fieldSelector: `involvedObject.name=${of.name},involvedObject.kind=${of.kind}` });
  const time = (event) => event.lastTimestamp || event.eventTime || event.metadata.creationTimestamp;
  const rows = [...list.items].sort((a, b) => (time(a) < time(b) ? 1 : -1));
  return html`<${Section} title="Events">
    <${ListBody} list=${list} empty="No events." doing="You may not list events in this namespace.">
      <${Table} label="Events" rows=${rows} keyOf=${(event) => event.metadata.name} columns=${[
        ["Age", (event) => html`<${Age} time=${time(event)} />`, "num"],
        ["Type", (event) => html`<${Badge} tone=${event.type === "Warning" ? "warn" : "plain"}>${event.reason}<//>`],
        ["Message", (event) => event.message, "wide"],
        ["Times", (event) => event.count ?? event.series?.count ?? 1, "num"],
      ]} />
    <//>
    <${Command} text=${command} />
  <//>`;
}
