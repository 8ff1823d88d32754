// Parts that the pages share.
import { Fragment, h } from "./vendor/preact.js";
import { useEffect, useRef, useState } from "./vendor/hooks.js";
import htm from "./vendor/htm.js";
import { age, clock } from "./format.js";
import { href, route, setQuery } from "./route.js";

export const html = htm.bind(h);

/** Symbol beside a state, so that color alone carries no meaning. */
const SYMBOLS = { ok: "●", info: "◐", warn: "▲", bad: "✕", plain: "○" };

export function Badge({ tone = "plain", children }) {
  return html`<span class=${`badge ${tone}`}><span aria-hidden="true">${SYMBOLS[tone]}</span> ${children}</span>`;
}

/** Title of a page with its path, state and actions. */
export function Page({ title, kind, crumbs = [], state, lists = [], actions, children }) {
  useEffect(() => {
    document.title = `${title} · Portolan`;
  }, [title]);
  return html`
    <header class="page-head">
      <div>
        ${crumbs.length > 0 && html`<nav aria-label="Path" class="crumbs">${crumbs.map(([text, address]) => html`<a href=${address}>${text}</a>`)}</nav>`}
        <h1 tabindex="-1">${kind && html`<span class="kind">${kind}</span>`}${title}${state && html` <${Badge} tone=${state.tone}>${state.word}<//>`}</h1>
        ${state?.message && html`<p class="lead">${state.message}</p>`}
      </div>
      <div class="page-tools">${actions}<${LiveMark} lists=${lists} /></div>
    </header>
    ${children}`;
}

/** Mark of the streams behind a page: live, or stale since a moment. */
export function LiveMark({ lists }) {
  const stale = lists.filter((list) => list.state === "stale");
  if (lists.length === 0) return null;
  if (stale.length > 0) {
    const since = stale.map((list) => list.since).sort()[0];
    return html`<span class="live stale" role="status"><span aria-hidden="true">◌</span> Stale since ${clock(since)}, reconnecting</span>`;
  }
  if (lists.some((list) => list.state === "loading")) return html`<span class="live" role="status">Loading…</span>`;
  return lists.some((list) => list.state === "live") ? html`<span class="live on" role="status"><span aria-hidden="true">●</span> Live</span>` : null;
}

export function Section({ title, note, actions, children, id }) {
  return html`
    <section class="card" aria-labelledby=${id ?? `s-${title}`}>
      <div class="card-head"><h2 id=${id ?? `s-${title}`}>${title}</h2>${note && html`<span class="note">${note}</span>`}<span class="spring"></span>${actions}</div>
      ${children}
    </section>`;
}

/** Command of kubectl, with a button that copies it. */
export function Command({ text }) {
  const [copied, set] = useState(false);
  const copy = () => navigator.clipboard?.writeText(text).then(() => set(true), () => set(false));
  return html`
    <div class="command"><code tabindex="0">${text}</code>
      <button type="button" class="quiet" onClick=${copy} aria-label=${`Copy the command ${text}`}>${copied ? "Copied" : "Copy"}</button>
    </div>`;
}

/** Button that changes something: it opens a dialog with the effect and the equal command, and acts on its confirmation. */
export function Action({ label, title, command, explain, typed, danger, disabled, why, run, primary }) {
  const dialog = useRef(null);
  const [text, type] = useState("");
  const [failure, fail] = useState(null);
  const [busy, work] = useState(false);
  const open = () => {
    type("");
    fail(null);
    dialog.current.showModal();
  };
  const confirm = async (event) => {
    event.preventDefault();
    work(true);
    try {
      await run();
      dialog.current.close();
    } catch (error) {
      fail(error);
    }
    work(false);
  };
  const blocked = busy || (typed && text !== typed);
  return html`
    <${Fragment}>
      <button type="button" class=${danger ? "danger" : primary ? "primary" : ""} disabled=${disabled} title=${disabled ? why : command} onClick=${open}>${label}</button>
      <dialog ref=${dialog} aria-label=${title ?? label}>
        <form method="dialog" onSubmit=${confirm}>
          <h2>${title ?? label}</h2>
          <div class="dialog-body">${explain}
            <p class="note">The same with kubectl:</p><${Command} text=${command} />
            ${typed && html`<label class="field">Type <strong>${typed}</strong> to confirm<input value=${text} autocomplete="off" onInput=${(e) => type(e.target.value)} /></label>`}
            ${failure && html`<${Problem} error=${failure} acting />`}
          </div>
          <div class="dialog-foot">
            <button type="button" onClick=${() => dialog.current.close()}>Cancel</button>
            <button type="submit" class=${danger ? "danger" : "primary"} disabled=${blocked}>${busy ? "Working…" : label}</button>
          </div>
        </form>
      </dialog>
    <//>`;
}

/** Refusal or failure, with what may be done about it. */
export function Problem({ error, doing, acting }) {
  if (error.code === 403) {
    return html`<div class="notice plain"><strong>You may not ${acting ? "do" : "see"} this.</strong> ${doing ?? "Your role here does not include it; an administrator of the workspace can grant it."}
      <details><summary>Answer of the server</summary>${error.message}</details></div>`;
  }
  if (error.code === 401) {
    return html`<div class="notice warn" role="alert"><strong>You are not known here.</strong> The token of your session is for another workspace, or has ended.</div>`;
  }
  if (error.code === 409) {
    return html`<div class="notice warn" role="alert"><strong>Not done: it has changed meanwhile.</strong> ${error.message}</div>`;
  }
  return html`<div class="notice bad" role="alert"><strong>${error.code === 404 ? "Not found." : "That did not work."}</strong> ${error.message}</div>`;
}

/** Body of a list: loading, refused, empty, or its content. */
export function ListBody({ list, empty, doing, children }) {
  if (list.state === "refused") return html`<${Problem} error=${list.error} doing=${doing} />`;
  if (list.state === "loading" && list.items.length === 0) return html`<p class="empty" aria-busy="true">Loading…</p>`;
  if (list.items.length === 0) return html`<div class="empty">${empty}</div>`;
  return children;
}

const ROWS = 200;

/** Table. Columns are `[header, cell of a row, class]`; long ones are drawn in parts. */
export function Table({ label, columns, rows, keyOf, empty = "Nothing here." }) {
  const [most, more] = useState(ROWS);
  const shown = rows.slice(0, most);
  return html`
    <${Fragment}>
      <div class="table-wrap" tabindex="0" role="region" aria-label=${label}>
        <table><thead><tr>${columns.map(([name, , kind]) => html`<th scope="col" class=${kind}>${name}</th>`)}</tr></thead>
          <tbody>${shown.map((row, at) => html`<tr key=${keyOf ? keyOf(row) : at}>${columns.map(([name, cell, kind]) => html`<td class=${kind} data-label=${name}>${cell(row)}</td>`)}</tr>`)}
          ${rows.length === 0 && html`<tr><td colspan=${columns.length} class="empty">${empty}</td></tr>`}</tbody>
        </table>
      </div>
      ${rows.length > most && html`<p class="more">Showing ${most.toLocaleString("en")} of ${rows.length.toLocaleString("en")}. <button type="button" class="quiet" onClick=${() => more(most + 5 * ROWS)}>Show more</button></p>`}
    <//>`;
}

/** Bar of a part of a whole, with the numbers as text. */
export function Meter({ value, most, text, tone = "accent" }) {
  const part = most > 0 ? Math.min(1, value / most) : 0;
  return html`<span class="meter"><svg viewBox="0 0 100 6" preserveAspectRatio="none" aria-hidden="true"><rect class="track" width="100" height="6" rx="1"/><rect class=${`fill ${tone}`} width=${part * 100} height="6" rx="1"/></svg><span>${text}</span></span>`;
}

/** Copies of an object: a chip per physical cluster. */
export function Copies({ copies, empty = "nowhere" }) {
  if (!copies?.length) return html`<span class="muted">${empty}</span>`;
  return html`<span class="chips">${copies.map((copy) => {
    const wanted = copy.desired ?? copy.replicas;
    const leaving = copy.phase === "Leaving";
    const tone = leaving ? "leaving" : copy.reason ? "bad" : wanted !== undefined && copy.ready !== undefined && copy.ready < wanted ? "warn" : "";
    const number = wanted === undefined ? "" : copy.ready === undefined ? ` ×${wanted}` : ` ${copy.ready}/${wanted}`;
    return html`<span class=${`chip ${tone}`} title=${copy.message ?? ""}>${copy.name ?? copy.cluster}${number}${leaving ? " leaving" : ""}</span>`;
  })}</span>`;
}

/** Text field whose value is in the URL. */
export function Search({ name = "q", label, placeholder }) {
  const value = route.value.query[name] ?? "";
  return html`<label class="search"><span class="hidden">${label}</span><input type="search" placeholder=${placeholder ?? label} value=${value} onInput=${(e) => setQuery({ [name]: e.target.value })} /></label>`;
}

/** Choice whose value is in the URL. */
export function Choice({ name, label, options }) {
  const value = route.value.query[name] ?? "";
  return html`<label class="choice">${label} <select value=${value} onChange=${(e) => setQuery({ [name]: e.target.value })}>
    ${options.map(([key, text]) => html`<option value=${key} selected=${key === value}>${text}</option>`)}</select></label>`;
}

/** Age of a moment, with the moment itself as a hint. */
export function Age({ time }) {
  return html`<time datetime=${time} title=${time}>${age(time)}</time>`;
}

/** Link to the page of an object. */
export function ObjectLink({ object, namespace, workspace, children }) {
  const args = [object.apiVersion.replace("/", "~"), object.kind, namespace ?? object.namespace ?? "", object.name];
  return html`<a href=${href("object", args, {}, workspace ?? route.value.workspace)}>${children ?? object.name}</a>`;
}
