// State of the page in the URL's fragment.
import { signal } from "./vendor/signals.js";
import { parseRoute, routeText } from "./model.js";

export const route = signal(parseRoute(location.hash));

addEventListener("hashchange", () => {
  route.value = parseRoute(location.hash);
});

/** Returns the address of a page in the current workspace, or in another. */
export function href(page, args = [], query = {}, workspace = route.value.workspace) {
  return routeText({ workspace, page, args, query });
}

/** Goes to an address. */
export function go(address) {
  location.hash = address;
}

/** Changes the query of the page without a new entry in the history. */
export function setQuery(changes) {
  const now = route.peek();
  const next = { ...now, query: { ...now.query, ...changes } };
  history.replaceState(null, "", routeText(next));
  route.value = parseRoute(location.hash);
}
