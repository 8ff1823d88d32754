// Tree of workspaces, and what one has: its kubeconfig, bound APIs and namespaces.
import { useState } from "./vendor/hooks.js";
import { patch } from "./api.js";
import { shell } from "./format.js";
import { useLive } from "./live.js";
import { claimsAccepted } from "./model.js";
import { Action, Age, Badge, Command, html, ListBody, Page, Problem, Section, Table } from "./parts.js";
import { href, route } from "./route.js";

const BINDINGS = "/apis/apis.kcp.io/v1alpha2/apibindings";
const TENANCY = "/apis/tenancy.kcp.io/v1alpha1/workspaces";

export function WorkspacesPage() {
  const { workspace } = route.value;
  const root = workspace.split(":")[0];
  const bindings = useLive(workspace, BINDINGS);
  const namespaces = useLive(workspace, "/api/v1/namespaces");
  return html`<${Page} title="Workspaces" lists=${[namespaces]}>
    <div class="columns">
      <${Section} title="Tree" note="that you may see"><ul class="tree"><${Node} path=${root} open phase="Ready" /></ul>
        <${Command} text="kubectl portolan ws tree" /><//>
      <div>
        <${Section} title=${workspace} note="this workspace">
          <p>Use it with kubectl:</p><${Command} text=${`kubectl portolan ws ${workspace}`} />
          <p>Make one below it:</p><${Command} text=${`kubectl portolan ws ${workspace} && kubectl create workspace NAME --enter`} />
        <//>
        <${Section} title="Namespaces">
          <${ListBody} list=${namespaces} empty="None." doing="You may not list the namespaces of this workspace.">
            <${Table} label="Namespaces" rows=${[...namespaces.items].sort((a, b) => (a.metadata.name < b.metadata.name ? -1 : 1))} keyOf=${(one) => one.metadata.name} columns=${[
              ["Namespace", (one) => html`<a href=${href("objects", [], { namespace: one.metadata.name })}>${one.metadata.name}</a>`],
              ["Phase", (one) => html`<${Badge} tone=${one.status?.phase === "Active" ? "ok" : "info"}>${one.status?.phase}<//>`],
              ["Age", (one) => html`<${Age} time=${one.metadata.creationTimestamp} />`, "num"]]} />
          <//><//>
        ${bindings.state !== "refused" && bindings.items.length > 0 && html`<${Section} title="Bound APIs">
          <${Table} label="Bound APIs" rows=${bindings.items} keyOf=${(one) => one.metadata.name} columns=${[
            ["Binding", (one) => one.metadata.name],
            ["Export", (one) => `${one.spec?.reference?.export?.path ?? ""} ${one.spec?.reference?.export?.name ?? ""}`],
            ["Phase", (one) => html`<${Badge} tone=${one.status?.phase === "Bound" ? "ok" : "warn"}>${one.status?.phase ?? "Unknown"}<//>`],
            ["Claims", (one) => html`<${Claims} binding=${one} />`]]} /><//>`}
      </div>
    </div>
  <//>`;
}

function Claims({ binding }) {
  const asked = binding.status?.exportPermissionClaims ?? [];
  const accepted = binding.spec?.permissionClaims ?? [];
  const key = (claim) => `${claim.resource}.${claim.group || "core"}`;
  const open = asked.filter((claim) => !accepted.some((one) => key(one) === key(claim)));
  if (asked.length === 0) return html`<span class="muted">none</span>`;
  if (open.length === 0) return `${asked.length} answered`;
  const { name, resourceVersion } = binding.metadata;
  const accept = () => patch(route.value.workspace, `${BINDINGS}/${name}`, { metadata: { resourceVersion }, spec: { permissionClaims: claimsAccepted(binding) } });
  return html`<strong>${open.length} to accept:</strong> ${open.map((claim) => `${key(claim)} (${(claim.verbs ?? []).join(", ")})`).join("; ")}
    <${Action} label="Accept" title=${`Accept the claims of ${name}`} command=${`kubectl kcp claims accept apibinding/${shell(name)}`} run=${accept}
      explain=${html`<p>The provider of the API may then use these objects of this workspace, all of them:</p><ul>${open.map((claim) => html`<li>${key(claim)}: ${(claim.verbs ?? []).join(", ")}</li>`)}</ul>`} />`;
}

/** Workspace of the tree. Its children are listed when it is open. */
function Node({ path, open: opened, phase, type }) {
  const current = route.value.workspace;
  const [open, toggle] = useState(opened || current.startsWith(`${path}:`));
  const list = useLive(path, open ? TENANCY : "");
  const rows = [...list.items].sort((a, b) => (a.metadata.name < b.metadata.name ? -1 : 1));
  const name = path.split(":").pop();
  return html`<li>
    <div class="tree-row"><button type="button" class="quiet" aria-expanded=${open} aria-label=${`${open ? "Close" : "Open"} ${path}`} onClick=${() => toggle(!open)}>${open ? "▾" : "▸"}</button>
      <a href=${href("workspaces", [], {}, path)} aria-current=${path === current ? "true" : undefined}>${name}</a>
      ${phase !== "Ready" && html`<${Badge} tone="warn">${phase}<//>`} ${type && html`<span class="muted">${type}</span>`}
      <span class="spring"></span><a class="quiet-link" href=${href("objects", [], {}, path)} aria-label=${`Objects of ${path}`}>objects</a></div>
    ${open && html`<ul>${list.state === "refused" && (list.error.code === 403 ? html`<li class="note">You may not list the workspaces below ${path}.</li>` : html`<li><${Problem} error=${list.error} /></li>`)}
      ${list.state === "loading" && html`<li class="note">Loading…</li>`}
      ${list.state !== "refused" && list.state !== "loading" && rows.length === 0 && html`<li class="note">No workspace below it.</li>`}
      ${rows.map((one) => html`<${Node} key=${one.metadata.name} path=${`${path}:${one.metadata.name}`} phase=${one.metadata.deletionTimestamp ? "Deleting" : one.status?.phase ?? "Unknown"} type=${one.spec?.type?.name} />`)}</ul>`}
  </li>`;
}
