// The choice of a channel by its name: a text field that suggests the names which contain what was typed.
import { get } from "../api.js";
import { Component, html } from "../html.js";
import { withQuery } from "../routes.js";

const SUGGESTIONS_MAX = 20;

export class ChannelPicker extends Component {
    state = { typed: this.props.name ?? "", names: [] };

    componentDidMount() {
        this.suggest("");
    }

    componentWillUnmount() {
        this.request?.abort();
    }

    type = (event) => {
        this.setState({ typed: event.target.value });
        this.suggest(event.target.value);
    };

    async suggest(search) {
        this.request?.abort();
        this.request = new AbortController();
        const path = withQuery("/api/overview", { search, sort: "name", limit: SUGGESTIONS_MAX });
        const { channels } = await get(path, this.request.signal).catch(() => ({ channels: [] }));
        this.setState({ names: channels.map(({ name }) => name) });
    }

    go = (event) => {
        event.preventDefault();
        location.hash = this.props.linkOf(this.state.typed.trim());
    };

    render(_props, { typed, names }) {
        return html`<form class="row" onSubmit=${this.go}>
            <input
                type="text"
                list="channel-names"
                required
                autocomplete="off"
                spellcheck=${false}
                aria-label="Channel"
                placeholder="Channel"
                value=${typed}
                onInput=${this.type}
            />
            <datalist id="channel-names">${names.map((name) => html`<option key=${name} value=${name} />`)}</datalist>
            <button>Open</button>
        </form>`;
    }
}
