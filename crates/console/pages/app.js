// Frame of the console: sign-in, navigation and the page of the URL.
import { render } from "./vendor/preact.js";
import { useEffect, useErrorBoundary, useState } from "./vendor/hooks.js";
import { effect, signal } from "./vendor/signals.js";
import { session, signIn, signOut, whoAmI } from "./api.js";
import { html } from "./parts.js";
import { go, href, route } from "./route.js";
import { SignIn } from "./signin.js";
import { ObjectsPage } from "./objects.js";
import { ObjectPage } from "./object.js";
import { WhatIfPage } from "./whatif.js";
import { DrainPage, DrainsPage } from "./drains.js";
import { MapPage } from "./map.js";
import { ClustersPage } from "./clusters.js";
import { WorkspacesPage } from "./workspaces.js";

const PAGES = {
  objects: ["Objects", ObjectsPage],
  map: ["Map", MapPage],
  "what-if": ["What if", WhatIfPage],
  drains: ["Drains", DrainsPage],
  clusters: ["Clusters", ClustersPage],
  workspaces: ["Workspaces", WorkspacesPage],
};
const HIDDEN = { object: ObjectPage, drain: DrainPage };
const PARENTS = { object: "objects", drain: "drains" };

const theme = signal(localStorage.getItem("theme") ?? "auto");
effect(() => {
  if (theme.value === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme.value;
  localStorage.setItem("theme", theme.value);
});
const THEMES = { auto: ["◑", "Follow the system's colors"], light: ["☀", "Light colors"], dark: ["☾", "Dark colors"] };

function ThemeButton() {
  const next = { auto: "light", light: "dark", dark: "auto" }[theme.value];
  const [symbol, label] = THEMES[theme.value];
  return html`<button type="button" class="quiet" title=${label} aria-label=${`${label}; change`} onClick=${() => (theme.value = next)}>${symbol}</button>`;
}

function WorkspaceField() {
  const { workspace, page } = route.value;
  const [text, type] = useState(workspace);
  useEffect(() => type(workspace), [workspace]);
  const submit = (event) => {
    event.preventDefault();
    go(href(PAGES[page] ? page : "objects", [], {}, text.trim()));
  };
  return html`<form class="workspace" onSubmit=${submit}><label>Workspace
    <input value=${text} spellcheck="false" autocomplete="off" onInput=${(e) => type(e.target.value)} onBlur=${submit} /></label></form>`;
}

function Frame() {
  const { page, workspace, args } = route.value;
  const current = PARENTS[page] ?? page;
  const Content = HIDDEN[page] ?? PAGES[page]?.[1];
  return html`
    <a class="skip" href="#content" onClick=${(e) => (e.preventDefault(), document.querySelector("h1")?.focus())}>Skip to the content</a>
    <div class="frame">
      <header class="side">
        <a class="brand" href=${href("objects")}><img src="/ui/icon.svg" alt="" width="28" height="28" /> Portolan</a>
        <${WorkspaceField} />
        <nav aria-label="Pages">${Object.entries(PAGES).map(([key, [label]]) => html`<a href=${href(key)} aria-current=${key === current ? "page" : undefined}>${label}</a>`)}</nav>
        <div class="side-foot">
          <span class="user" title=${(session.value.groups ?? []).join(", ")}>${session.value.user}</span>
          <span class="side-buttons"><${ThemeButton} /><button type="button" class="quiet" onClick=${signOut}>Sign out</button></span>
        </div>
      </header>
      <main id="content" key=${`${workspace} ${page} ${args.join("/")}`}>
        ${Content ? html`<${Guarded}><${Content} /><//>` : html`<div class="notice warn">There is no page ${page}.</div>`}
      </main>
    </div>`;
}

/** Shows a fault of a page without blanking the rest. */
function Guarded({ children }) {
  const [fault, reset] = useErrorBoundary((error) => console.error(error));
  if (!fault) return children;
  return html`<div class="notice bad" role="alert"><strong>This page has a fault.</strong> ${String(fault.message ?? fault)} <button type="button" onClick=${reset}>Try again</button></div>`;
}

function App({ failure }) {
  if (session.value === undefined) return html`<p class="boot">Loading the console…</p>`;
  if (session.value === null) return html`<${SignIn} failure=${failure} />`;
  if (offered.value) return html`<${LinkQuestion} />`;
  return html`<${Frame} />`;
}

/** Code of the one-time link that the page was opened by, while its user is asked about it. */
const offered = signal("");

/** Takes the code of a one-time link out of the URL, which then does not show it any more. */
function takeLink() {
  const { link, ...query } = route.value.query;
  if (!link) return "";
  history.replaceState(null, "", href(route.value.page, route.value.args, query));
  route.value = { ...route.value, query };
  return link;
}

/** Uses the code of a one-time link. Returns the reason of a failure. */
async function useLink(code) {
  try {
    await signIn({ code });
    return "";
  } catch (error) {
    return error.code === 401 ? "This link was used before, or is older than a minute. Make another one: kubectl portolan ui" : error.message;
  }
}

/** Asks whether a link may end the present session: anybody can send one that signs in as somebody else. */
function LinkQuestion() {
  const [failure, fail] = useState("");
  const [busy, work] = useState(false);
  useEffect(() => {
    document.title = "Sign in by the link? · Portolan";
  }, []);
  const use = async () => {
    work(true);
    const why = await useLink(offered.value);
    work(false);
    if (why) fail(why);
    else offered.value = "";
  };
  return html`
    <main class="signin"><div class="signin-card">
      <h1>Sign in by this link?</h1>
      <p>You are signed in as <strong>${session.value.user}</strong>. The link ends this session and signs you in as its maker. Use it only if that was you.</p>
      ${failure && html`<div class="notice bad" role="alert"><strong>${failure}</strong></div>`}
      <div class="form-row"><button type="button" class="primary" onClick=${() => (offered.value = "")}>Stay ${session.value.user}</button>
        <button type="button" disabled=${busy || Boolean(failure)} onClick=${use}>${busy ? "Signing in…" : "Sign in by the link"}</button></div>
    </div></main>`;
}

/** Reasons of a failed sign-in at an issuer. The URL has only their name: anybody can write a link. */
const SIGN_IN_FAILURES = {
  refused: "The issuer refused the sign-in.",
  expired: "The sign-in is older than ten minutes, or was begun in another browser.",
  token: "The issuer's token was refused. The server's log has the reason at level debug.",
};

/** Returns the reason of a failed sign-in that the URL names. */
function signInFailure() {
  const name = route.value.query["sign-in-failed"];
  if (name === undefined) return "";
  session.value = null;
  return SIGN_IN_FAILURES[name] ?? "The sign-in failed.";
}

async function start() {
  const target = document.getElementById("app");
  const code = takeLink();
  let failure = signInFailure();
  if (!failure) {
    await whoAmI().catch((error) => {
      failure = error.message;
      session.value = null;
    });
  }
  if (code && session.value) offered.value = code;
  else if (code) failure = await useLink(code);
  if (!route.value.workspace) go(href("objects", [], {}, session.value?.workspace || "root"));
  target.textContent = "";
  render(html`<${App} failure=${failure} />`, target);
  document.documentElement.dataset.ready = "true";
}

start();
