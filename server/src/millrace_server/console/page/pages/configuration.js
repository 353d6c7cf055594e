// The configuration in force, with defaults; secrets are left out by the server.
import { count } from "../format.js";
import { Component, html } from "../html.js";
import { Live } from "../live.js";
import { Page } from "../parts/page.js";
import { Settings } from "../parts/settings.js";

const SECONDS = 30;
const SECTIONS_MAX = 20;

export class Configuration extends Component {
    state = { search: "", isChangedOnly: false };

    render(_props, { search, isChangedOnly }) {
        return html`<${Page} title="Configuration">
            <div class="row">
                <input
                    class="grow"
                    type="search"
                    aria-label="Search settings"
                    placeholder="Search settings"
                    value=${search}
                    onInput=${(event) => this.setState({ search: event.target.value })}
                />
                <label class="check"
                    ><input
                        type="checkbox"
                        checked=${isChangedOnly}
                        onChange=${(event) => this.setState({ isChangedOnly: event.target.checked })}
                    />
                    Only what differs from its default</label
                >
            </div>
            <${Live} path="/api/configuration" seconds=${SECONDS}>${({ sections }) => this.renderSections(sections)}<//>
        <//>`;
    }

    renderSections(sections) {
        const { search, isChangedOnly } = this.state;
        const isShown = (section, { name, is_default }) =>
            `${section}.${name}`.includes(search.trim()) && !(isChangedOnly && is_default);
        const shown = sections
            .map(({ name, settings }) => ({ name, settings: settings.filter((setting) => isShown(name, setting)) }))
            .filter(({ settings }) => settings.length > 0);
        if (shown.length === 0) return html`<p class="empty">No such setting.</p>`;
        return html` ${shown
            .slice(0, SECTIONS_MAX)
            .map(({ name, settings }) => html`<${Settings} key=${name} title=${name} settings=${settings} />`)}
        ${
            shown.length > SECTIONS_MAX &&
            html`<p class="empty">
                ${count(shown.length - SECTIONS_MAX)} more sections; search for one, such as “channels.orders”.
            </p>`
        }`;
    }
}
