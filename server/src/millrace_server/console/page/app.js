// The console: the login where the server wants one, else the navigation and the page of the address.
import { onLoggedOut, session } from "./api.js";
import { Component, html, render } from "./html.js";
import { Login } from "./pages/login.js";
import { Components } from "./pages/components.js";
import { Configuration } from "./pages/configuration.js";
import { ChannelPage } from "./pages/channel.js";
import { DeadLetters } from "./pages/dead_letters.js";
import { Events } from "./pages/events.js";
import { Flow } from "./pages/flow.js";
import { Overview } from "./pages/overview.js";
import { ActHost } from "./parts/act_dialog.js";
import { Page } from "./parts/page.js";
import { Refusal } from "./parts/status.js";
import { currentRoute, link } from "./routes.js";
import { initTheme, ThemeSwitch } from "./theme.js";

const PAGES = {
    "": { title: "Overview", address: link.overview(), view: Overview },
    flow: { title: "Flow", address: link.flow(), view: Flow },
    events: { title: "Events", address: link.events(), view: Events },
    "dead-letters": { title: "Dead letters", address: link.deadLetters(), view: DeadLetters },
    components: { title: "Components", address: link.components(), view: Components },
    configuration: { title: "Configuration", address: link.configuration(), view: Configuration },
};
const viewOf = (page) => (page === "channels" ? ChannelPage : (PAGES[page]?.view ?? NoSuchPage));

const NoSuchPage = () =>
    html`<${Page} title="No such page"
        ><p>Go to the <a href=${link.overview()}>overview</a>.</p><//
    >`;

class App extends Component {
    state = { route: currentRoute(), session: null, error: null };

    componentDidMount() {
        addEventListener("hashchange", () => this.setState({ route: currentRoute() }));
        onLoggedOut(() => this.readSession());
        this.readSession();
    }

    readSession = async () => {
        try {
            this.setState({ session: await session.read(), error: null });
        } catch (error) {
            this.setState({ error });
        }
    };

    logOut = async () => {
        await session.close();
        this.readSession();
    };

    render(_props, { route, session: known, error }) {
        if (error) return html`<main class="door"><${Refusal} error=${error} /></main>`;
        if (!known) return null;
        if (known.is_required && !known.identity) return html`<${Login} onLogin=${this.readSession} />`;
        const view = viewOf(route.page);
        return html` <a class="skip" href="#main" onClick=${skip}>Skip to the content</a>
            <${Side} page=${route.page} session=${known} onLogOut=${this.logOut} />
            <main id="main" tabindex="-1">
                <${Boundary} key=${`${route.page}/${route.name}`}>
                    <${view} name=${route.name} query=${route.query} />
                <//>
            </main>
            <${ActHost} />`;
    }
}

// Keeps the navigation when a page fails, which is a bug.
class Boundary extends Component {
    state = { error: null };

    componentDidCatch(error) {
        console.error(error);
        this.setState({ error });
    }

    render({ children }, { error }) {
        return error
            ? html`<p class="banner bad" role="alert">The page failed: ${error.message}. Reload it.</p>`
            : children;
    }
}

function skip(event) {
    event.preventDefault();
    document.getElementById("main").focus();
}

class Side extends Component {
    componentDidMount() {
        this.showCurrent();
    }

    componentDidUpdate(before) {
        if (before.page !== this.props.page) this.showCurrent();
    }

    // On a narrow screen the strip of pages may be scrolled.
    showCurrent() {
        this.strip.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
    }

    render({ page, session: known, onLogOut }) {
        const current = page === "channels" ? "" : page;
        return html`<header class="side">
            <div class="brand">
                <svg viewBox="0 0 24 24" aria-hidden="true">
                    <g fill="none" stroke="currentColor" stroke-width="2">
                        <circle cx="12" cy="12" r="7" />
                        <path d="M12 1v22M1 12h22M4.2 4.2l15.6 15.6M19.8 4.2 4.2 19.8" />
                    </g></svg
                >Millrace
            </div>
            <nav aria-label="Console" ref=${(strip) => (this.strip = strip)}>
                <ul>
                    ${Object.entries(PAGES).map(
                        ([name, { title, address }]) =>
                            html`<li key=${name}>
                                <a href=${address} aria-current=${name === current ? "page" : null}>${title}</a>
                            </li>`,
                    )}
                </ul>
            </nav>
            <div class="foot">
                <p class="small muted where">${location.host}<br />version ${known.server.version}</p>
                ${known.identity && html`<p class="small muted where">Logged in as ${known.identity}</p>`}
                <${ThemeSwitch} />
                ${known.is_required && html`<button type="button" onClick=${onLogOut}>Log out</button>`}
            </div>
        </header>`;
    }
}

initTheme();
render(html`<${App} />`, document.getElementById("console"));
