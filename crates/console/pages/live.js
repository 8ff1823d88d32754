// Lists that are kept current by watches.
import { useEffect, useLayoutEffect, useState } from "./vendor/hooks.js";
import { ApiError, get, stream } from "./api.js";

/** Objects of a page of a list. */
const PAGE = 500;
/** Most objects of a live list; the page says when there are more. */
const MOST = 10000;
/** Pause between changes that are shown, so that a burst is drawn once. */
const DRAWN_EVERY = 120;
const RETRY = [1000, 2000, 5000, 10000];

const shared = new Map();

/** List that a watch keeps current, shared by all parts of the page that use it. */
export class LiveList {
  constructor(workspace, path, query) {
    Object.assign(this, { workspace, path, query, users: new Set(), items: new Map(), revision: "", failures: 0 });
    this.shown = { state: "loading", items: [], since: null, error: null, truncated: false };
    this.abort = new AbortController();
    this.run();
  }

  url(parameters) {
    return `${this.path}?${new URLSearchParams({ ...this.query, ...parameters })}`;
  }

  async run() {
    while (!this.abort.signal.aborted) {
      try {
        if (!this.revision) await this.list();
        await this.watch();
      } catch (error) {
        if (this.abort.signal.aborted) return;
        if (error.code === 410) this.revision = "";
        if ([401, 403, 404, 405].includes(error.code)) {
          this.publish({ state: "refused", error, items: [] });
          return;
        }
        if (error.code !== 410) this.stale(error);
      }
      await new Promise((wake) => setTimeout(wake, RETRY[Math.min(this.failures, RETRY.length - 1)]));
      this.failures += 1;
    }
  }

  async list() {
    const items = new Map();
    let next = "";
    let truncated = false;
    do {
      const page = await get(this.workspace, this.url({ limit: PAGE, ...(next && { continue: next }) }), { signal: this.abort.signal });
      for (const item of page.items ?? []) items.set(keyOf(item), item);
      this.revision = page.metadata.resourceVersion;
      next = page.metadata.continue ?? "";
      if (items.size >= MOST && next) {
        truncated = true;
        next = "";
      }
    } while (next);
    this.items = items;
    this.publish({ state: "live", since: null, error: null, truncated });
  }

  async watch() {
    const url = this.url({ watch: "true", resourceVersion: this.revision, allowWatchBookmarks: "true" });
    const response = await stream(this.workspace, url, this.abort.signal);
    this.failures = 0;
    this.publish({ state: "live", since: null, error: null });
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      lines.filter(Boolean).forEach((line) => this.apply(JSON.parse(line)));
    }
    // The server ends each watch after some time; only a failure to resume makes the list stale.
  }

  apply({ type, object }) {
    if (type === "ERROR") throw new ApiError(object.code ?? 500, object);
    this.revision = object.metadata.resourceVersion;
    if (type === "BOOKMARK") return;
    if (type === "DELETED") this.items.delete(keyOf(object));
    else this.items.set(keyOf(object), object);
    this.publish({});
  }

  stale(error) {
    const since = this.shown.since ?? new Date().toISOString();
    this.publish({ state: this.shown.state === "loading" ? "loading" : "stale", since, error });
  }

  publish(changes) {
    this.shown = { ...this.shown, ...changes };
    if (this.timer) return;
    this.timer = setTimeout(() => {
      this.timer = 0;
      this.shown = { ...this.shown, items: [...this.items.values()] };
      this.users.forEach((user) => user(this.shown));
    }, this.shown.items.length ? DRAWN_EVERY : 0);
  }
}

function keyOf(object) {
  return `${object.metadata.namespace ?? ""}/${object.metadata.name}`;
}

/** Uses a live list of a workspace; without a path there is none. */
export function useLive(workspace, path, query = {}) {
  const key = path ? `${workspace} ${path}?${new URLSearchParams(query)}` : "";
  const [shown, show] = useState({ state: "loading", items: [] });
  // Before the page is painted: the request is under way meanwhile.
  useLayoutEffect(() => {
    if (!key) {
      show({ state: "none", items: [] });
      return undefined;
    }
    let list = shared.get(key);
    if (!list) {
      list = new LiveList(workspace, path, query);
      shared.set(key, list);
    }
    list.users.add(show);
    show(list.shown);
    return () => {
      list.users.delete(show);
      if (list.users.size === 0) {
        list.abort.abort();
        shared.delete(key);
      }
    };
  }, [key]);
  return shown;
}

/** Uses a value that is asked once, and again when `keys` change. */
export function useAsked(ask, keys) {
  const [found, show] = useState({ state: "loading" });
  const [round, again] = useState(0);
  useEffect(() => {
    let current = true;
    ask()
      .then((value) => current && show({ state: "known", value }))
      .catch((error) => current && show({ state: "refused", error }));
    return () => {
      current = false;
    };
  }, [...keys, round]);
  return { ...found, again: () => again((number) => number + 1) };
}

/** Draws the page again every second, for ages. */
export function useTicks(every = 1000) {
  const [, tick] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => tick((number) => number + 1), every);
    return () => clearInterval(timer);
  }, [every]);
}
