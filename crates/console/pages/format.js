// Pure formatting of values for people.

/** Formats the time since a moment as kubectl does: `12s`, `5m`, `3h`, `2d`. */
export function age(time, now = Date.now()) {
  if (!time) return "–";
  const seconds = Math.max(0, Math.floor((now - Date.parse(time)) / 1000));
  if (Number.isNaN(seconds)) return "–";
  if (seconds < 120) return `${seconds}s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 120) return `${minutes}m`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours}h` : `${Math.floor(hours / 24)}d`;
}

/** Formats a number with its noun: `1 object`, `3 objects`. */
export function count(number, noun, plural = `${noun}s`) {
  return `${number.toLocaleString("en")} ${number === 1 ? noun : plural}`;
}

/** Formats a moment as a local time of day, with the date unless it is today. */
export function clock(time, now = new Date()) {
  const at = new Date(time);
  if (Number.isNaN(at.getTime())) return "–";
  const day = at.toDateString() === now.toDateString() ? "" : `${at.toLocaleDateString("en-CA")} `;
  return day + at.toLocaleTimeString("en-GB");
}

const FACTORS = { n: 1e-9, u: 1e-6, m: 1e-3, "": 1, k: 1e3, M: 1e6, G: 1e9, T: 1e12, P: 1e15, E: 1e18,
  Ki: 2 ** 10, Mi: 2 ** 20, Gi: 2 ** 30, Ti: 2 ** 40, Pi: 2 ** 50, Ei: 2 ** 60 };

/** Parses a quantity of Kubernetes; `null` for other text. */
export function quantity(text) {
  if (text === undefined || text === null || text === "") return null;
  const parts = /^([+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?)([a-zA-Z]*)$/.exec(String(text));
  if (!parts || !(parts[2] in FACTORS)) return null;
  const number = Number(parts[1]);
  return Number.isNaN(number) ? null : number * FACTORS[parts[2]];
}

/** Formats an amount of a resource: cores for `cpu`, binary units for bytes, plain numbers for the rest. */
export function amount(value, resource) {
  if (value === null || value === undefined) return "–";
  if (resource === "cpu") return `${round(value)} CPU`;
  if (resource !== "memory" && !resource.includes("storage")) return round(value);
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let at = 0;
  let rest = value;
  while (rest >= 1024 && at < units.length - 1) {
    rest /= 1024;
    at += 1;
  }
  return `${round(rest)} ${units[at]}`;
}

function round(value) {
  return value >= 100 ? String(Math.round(value)) : String(Math.round(value * 10) / 10);
}

/** Writes a JSON value as YAML, for objects of Kubernetes. */
export function yaml(value, indent = "") {
  if (Array.isArray(value)) {
    if (value.length === 0) return " []\n";
    return "\n" + value.map((item) => `${indent}-${nested(item, `${indent}  `, true)}`).join("");
  }
  if (value && typeof value === "object") {
    const keys = Object.keys(value).filter((key) => value[key] !== undefined);
    if (keys.length === 0) return " {}\n";
    const lines = keys.map((key) => `${indent}${scalar(key)}:${nested(value[key], indent, false)}`);
    return "\n" + lines.join("");
  }
  return ` ${scalar(value)}\n`;
}

function nested(value, indent, inList) {
  if (!value || typeof value !== "object") return ` ${scalar(value)}\n`;
  if (inList) {
    // The first key of an object follows the dash.
    const text = yaml(value, indent);
    return text.startsWith("\n") ? ` ${text.slice(1 + indent.length)}` : text;
  }
  return yaml(value, Array.isArray(value) ? indent : `${indent}  `);
}

function scalar(value) {
  if (typeof value !== "string") return JSON.stringify(value);
  const plain = /^[A-Za-z_/][A-Za-z0-9_./-]*$/.test(value) && !/^(true|false|null|yes|no|on|off|y|n)$/i.test(value);
  return plain ? value : JSON.stringify(value);
}

/** Returns the YAML document of an object, without what the server adds. */
export function document(object) {
  const { managedFields, uid, resourceVersion, generation, creationTimestamp, selfLink, ...metadata } = object.metadata ?? {};
  const { status, ...rest } = object;
  return yaml({ ...rest, metadata }).slice(1);
}

/** Bounds of a log on the page: lines, characters of a line, and characters of all. */
const LOG_BOUNDS = { lines: 5000, line: 16384, all: 4e6 };
export const EMPTY_LOG = { lines: [], rest: "", size: 0 };

/** Adds text to a log within its bounds. Of a long line the beginning is kept, of a long log the end. */
export function appendLog({ lines, rest, size }, text, bounds = LOG_BOUNDS) {
  const bounded = (line) => (line.length > bounds.line ? `${line.slice(0, bounds.line)}…` : line);
  const got = (rest + text).split("\n").map(bounded);
  const last = got.pop();
  const all = [...lines, ...got];
  let kept = got.reduce((sum, line) => sum + line.length, size);
  let from = Math.max(0, all.length - bounds.lines);
  for (let at = 0; at < from; at += 1) kept -= all[at].length;
  for (; kept > bounds.all && from < all.length; from += 1) kept -= all[from].length;
  return { lines: all.slice(from), rest: last, size: kept };
}

/** Text of a log, with the line that has not ended. */
export function logText({ lines, rest }) {
  return rest ? [...lines, rest].join("\n") : lines.join("\n");
}

/** Quotes an argument for a shell. */
export function shell(text) {
  return /^[A-Za-z0-9_@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

/** Reads the claims of a JSON Web Token, to say why it may have been refused; `null` for other text. */
export function claims(token) {
  const parts = token.trim().split(".");
  if (parts.length !== 3) return null;
  try {
    const text = atob(parts[1].replaceAll("-", "+").replaceAll("_", "/"));
    return JSON.parse(decodeURIComponent(Array.from(text, (c) => `%${c.charCodeAt(0).toString(16).padStart(2, "0")}`).join("")));
  } catch {
    return null;
  }
}

/** Returns sentences about the claims of a refused token: issuer, audience and times. */
export function tokenHints(token, now = Date.now()) {
  const read = claims(token);
  if (!read) return ["It is no JSON Web Token. The server also takes tokens of its --token-auth-file."];
  const hints = [];
  const seconds = now / 1000;
  if (read.iss) hints.push(`Its issuer is ${read.iss}; the server must be configured with that issuer.`);
  if (read.aud) hints.push(`Its audience is ${[read.aud].flat().join(", ")}.`);
  if (read.exp && read.exp <= seconds) hints.push(`It expired ${age(new Date(read.exp * 1000).toISOString(), now)} ago.`);
  if (read.nbf && read.nbf > seconds) hints.push("It is not valid yet: the clock of this computer or of the issuer is wrong.");
  if (read.exp && read.exp > seconds) hints.push(`It expires at ${clock(read.exp * 1000)}, so its time is not the reason.`);
  return hints;
}
