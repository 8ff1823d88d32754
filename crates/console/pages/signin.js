// Sign-in: a token, a one-time link, or an issuer.
import { useEffect, useState } from "./vendor/hooks.js";
import { session, signIn } from "./api.js";
import { tokenHints } from "./format.js";
import { Command, html } from "./parts.js";
import { go, href, route } from "./route.js";

/** Page of users without a session. */
export function SignIn({ failure }) {
  const [token, type] = useState("");
  const [refused, refuse] = useState(failure ? { message: failure, hints: [] } : null);
  const [busy, work] = useState(false);
  const [issuers, know] = useState([]);
  useEffect(() => {
    document.title = "Sign in · Portolan";
    fetch("/ui/settings").then((answer) => answer.json()).then((settings) => know(settings.issuers ?? []), () => {});
  }, []);
  const submit = async (event) => {
    event.preventDefault();
    work(true);
    try {
      await signIn({ token: token.trim() });
      const home = session.value.workspace;
      if (home && route.value.workspace !== home) go(href("objects", [], {}, home));
    } catch (error) {
      const unknown = error.code === 401;
      refuse({ message: unknown ? "The server does not accept this token." : error.message, hints: unknown ? tokenHints(token) : [] });
    }
    work(false);
  };
  return html`
    <main class="signin">
      <div class="signin-card">
        <img src="/ui/icon.svg" alt="" width="44" height="44" />
        <h1>Sign in to Portolan</h1>
        <p class="lead">The console acts with your own rights, as kubectl does.</p>
        ${refused && html`<div class="notice bad" role="alert"><strong>${refused.message}</strong>
          ${refused.hints.length > 0 && html`<ul>${refused.hints.map((hint) => html`<li>${hint}</li>`)}</ul>`}</div>`}
        ${issuers.map((issuer) => html`<a class="button primary full" href=${`/ui/oidc/start?issuer=${encodeURIComponent(issuer.url)}&to=${encodeURIComponent(location.hash)}`}>Continue with ${issuer.name}</a>`)}
        ${issuers.length > 0 && html`<p class="or"><span>or</span></p>`}
        <h2>With your kubeconfig</h2>
        <p>This command prints a link that signs you in once, within a minute:</p>
        <${Command} text="kubectl portolan ui" />
        <p class="or"><span>or</span></p>
        <form onSubmit=${submit}>
          <label class="field">Token
            <textarea rows="3" spellcheck="false" autocomplete="off" value=${token} onInput=${(e) => type(e.target.value)} placeholder="Paste a bearer token"></textarea></label>
          <p class="note">For example of <code>kubectl create token NAME</code>. It stays in a sealed cookie that scripts cannot read.</p>
          <button class="primary full" disabled=${busy || !token.trim()}>${busy ? "Signing in…" : "Sign in with the token"}</button>
        </form>
      </div>
    </main>`;
}
