// Client of the API with the session's cookies.
import { signal } from "./vendor/signals.js";

export const GROUP = "/apis/portolan.dev/v1alpha1";
const CONSOLE = { "X-Portolan-Console": "1" };

/** Session: `undefined` before it is known, `null` without one, else the user. */
export const session = signal(undefined);

/** Answer that is a refusal, or no answer at all. */
export class ApiError extends Error {
  constructor(code, status) {
    super(status?.message || (code ? `the server answered ${code}` : "the server cannot be reached"));
    this.code = code;
    this.reason = status?.reason ?? "";
  }
}

async function exchange(method, path, { body, type = "application/json", accept = "application/json", signal: abort } = {}) {
  const headers = { ...CONSOLE, Accept: accept };
  if (body !== undefined) headers["Content-Type"] = type;
  const text = body === undefined || typeof body === "string" ? body : JSON.stringify(body);
  let response;
  try {
    response = await fetch(path, { method, headers, body: text, signal: abort, credentials: "same-origin", redirect: "error" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0);
  }
  if (!response.ok) {
    const status = await response.json().catch(() => null);
    // A token of another workspace is refused here; only a session that is known nowhere has ended.
    if (response.status === 401 && session.peek() && !path.endsWith("/selfsubjectreviews")) whoAmI().catch(() => {});
    throw new ApiError(response.status, status);
  }
  return response;
}

/** Sends a request to Kubernetes' API of a workspace; of the user's own without one. */
export async function send(method, workspace, path, options) {
  const prefix = workspace ? `/ui/api/clusters/${workspace}` : "/ui/api";
  const response = await exchange(method, prefix + path, options);
  return response.json();
}

/** Opens a stream, such as a watch or logs. */
export async function stream(workspace, path, abort, accept) {
  return exchange("GET", `/ui/api/clusters/${workspace}${path}`, { signal: abort, accept });
}

export const get = (workspace, path, options) => send("GET", workspace, path, options);
export const create = (workspace, path, body, options) => send("POST", workspace, path, { body, ...options });
export const patch = (workspace, path, body) =>
  send("PATCH", workspace, path, { body, type: "application/merge-patch+json" });
export const replace = (workspace, path, body) => send("PUT", workspace, path, { body });
export const remove = (workspace, path) => send("DELETE", workspace, path);

/** Signs in by a token or a one-time code. */
export async function signIn(credential) {
  const response = await exchange("POST", "/ui/session", { body: credential });
  session.value = await response.json();
}

/** Signs out: the server removes the cookies. */
export async function signOut() {
  await exchange("DELETE", "/ui/session");
  session.value = null;
}

/** Asks who the session's user is. */
export async function whoAmI() {
  try {
    const review = { apiVersion: "authentication.k8s.io/v1", kind: "SelfSubjectReview" };
    const answer = await create("", "/apis/authentication.k8s.io/v1/selfsubjectreviews", review);
    const user = answer.status.userInfo;
    session.value = { ...session.peek(), user: user.username, groups: user.groups ?? [] };
  } catch (error) {
    session.value = null;
    if (error.code !== 401) throw error;
  }
}

const discovered = new Map();

/** Returns the path of a kind's objects: `/apis/apps/v1/namespaces/default/deployments`. */
export async function pathOf(workspace, apiVersion, kind, namespace) {
  const root = apiVersion.includes("/") ? `/apis/${apiVersion}` : `/api/${apiVersion}`;
  const key = `${workspace} ${root}`;
  if (!discovered.has(key)) discovered.set(key, get(workspace, root).catch((error) => (discovered.delete(key), Promise.reject(error))));
  const list = await discovered.get(key);
  const resource = list.resources.find((one) => one.kind === kind && !one.name.includes("/"));
  if (!resource) throw new ApiError(404, { message: `${workspace} has no kind ${kind} of ${apiVersion}` });
  return resource.namespaced ? `${root}/namespaces/${namespace}/${resource.name}` : `${root}/${resource.name}`;
}
