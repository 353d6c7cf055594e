// The event browser: peeks at a channel from a place in it, or follows what comes in. It never takes.
import { channelPath, get } from "../api.js";
import { count, time } from "../format.js";
import { Component, html } from "../html.js";
import { ChannelPicker } from "../parts/channel_picker.js";
import { EventTable } from "../parts/event_table.js";
import { Page } from "../parts/page.js";
import { Refusal } from "../parts/status.js";
import { Card } from "../parts/table.js";
import { link, replaceQuery, withQuery } from "../routes.js";

const PAGE_EVENTS = 50;
const SHOWN_EVENTS_MAX = 500;

const COLUMNS = [
    { title: "Committed", look: "wide fixed", cell: ({ commit_time }) => time(commit_time, { milliseconds: true }) },
    {
        title: "Headers",
        look: "wide brief mono",
        cell: ({ headers }) => headers.map((pair) => pair.join("=")).join(" "),
    },
];

export class Events extends Component {
    render({ name, query }) {
        return html`<${Page} title=${name || "Events"} above=${name && "Events of"}>
            <${ChannelPicker} name=${name} linkOf=${link.events} />
            ${name && html`<${Browser} channel=${name} query=${query} />`}
        <//>`;
    }
}

class Browser extends Component {
    state = {
        start: this.props.query.start ?? "oldest",
        from: this.props.query.from ?? "",
        search: this.props.query.search ?? "",
        ...nothing,
    };

    componentDidMount() {
        this.read();
    }

    componentWillUnmount() {
        this.stop();
    }

    stop = () => {
        this.request?.abort();
        this.stream?.close();
        this.stream = null;
        this.setState({ isBusy: false });
    };

    submit = (event) => {
        event.preventDefault();
        this.read();
    };

    // From the chosen place; `follow` is a place, too.
    read() {
        const { start, from, search } = this.state;
        this.stop();
        replaceQuery({ start: start === "oldest" ? "" : start, from, search });
        this.setState({ ...nothing, sought: search });
        if (start === "follow") this.follow(search);
        else this.readOn(placeOf(start, from), search);
    }

    // Reads until a page is full: where few events match, the server responds in parts.
    async readOn(place, search) {
        const { channel } = this.props;
        const request = new AbortController();
        this.request = request;
        this.setState({ isBusy: true, error: null });
        try {
            let wanted = PAGE_EVENTS;
            for (let isEnd = false; wanted > 0 && !isEnd;) {
                const path = withQuery(channelPath(channel, "/events"), { ...place, search, max_events: wanted });
                const response = await get(path, request.signal);
                if (request.signal.aborted) return;
                wanted -= response.events.length;
                isEnd = response.is_end;
                place = { from_sequence: response.next_sequence };
                this.setState(({ events, scanned }) => ({
                    events: [...events, ...response.events].slice(-SHOWN_EVENTS_MAX),
                    scanned: scanned + response.scanned_count,
                    next: response.next_sequence,
                    isEnd,
                    range: response,
                }));
            }
        } catch (error) {
            if (!request.signal.aborted) this.setState({ error });
        }
        if (!request.signal.aborted) this.setState({ isBusy: false });
    }

    follow(search) {
        this.stream = new EventSource(withQuery(channelPath(this.props.channel, "/follow"), { search }));
        this.setState({ isBusy: true });
        this.stream.onmessage = ({ data }) => {
            const { events, skipped_count } = JSON.parse(data);
            this.setState((state) => ({
                events: [...events.reverse(), ...state.events].slice(0, SHOWN_EVENTS_MAX),
                skipped: state.skipped + skipped_count,
                error: null,
            }));
        };
        this.stream.onerror = () => this.setState({ error: { message: "The connection is lost; trying again." } });
        this.stream.addEventListener("refused", ({ data }) => {
            this.stop();
            this.setState({ error: JSON.parse(data) });
        });
    }

    render({ channel }, { events, sought, error, start, isBusy }) {
        const empty = start === "follow" ? "Waiting for events…" : isBusy ? "Reading…" : "No events.";
        return html` ${this.renderForm()}
            <${Refusal} error=${error} />
            <${Card} isHidden=${error && events.length === 0}>
                ${
                    events.length > 0
                        ? html`<${EventTable}
                              label="Events"
                              columns=${COLUMNS}
                              channel=${channel}
                              events=${events}
                              search=${sought}
                          />`
                        : html`<p class="empty">${empty}</p>`
                }
            <//>
            ${this.renderProgress()}`;
    }

    renderForm() {
        const { start, from, search, isBusy } = this.state;
        const set = (name) => (event) => this.setState({ [name]: event.target.value });
        return html`<form class="row" onSubmit=${this.submit}>
            <select aria-label="Start at" value=${start} onChange=${set("start")}>
                <option value="oldest">From the oldest</option>
                <option value="sequence">From a sequence</option>
                <option value="time">From a time</option>
                <option value="follow">Follow new events</option>
            </select>
            ${
                start === "sequence" &&
                html`<input
                    type="text"
                    inputmode="numeric"
                    pattern="[0-9]+"
                    required
                    aria-label="Sequence"
                    placeholder="Sequence"
                    value=${from}
                    onInput=${set("from")}
                />`
            }
            ${
                start === "time" &&
                html`<input
                    type="datetime-local"
                    step="1"
                    required
                    aria-label="Time"
                    value=${from}
                    onInput=${set("from")}
                />`
            }
            <input
                class="grow"
                type="search"
                aria-label="Search headers and bodies"
                placeholder="Search headers and bodies"
                value=${search}
                onInput=${set("search")}
            />
            <button class="primary">${start === "follow" ? "Follow" : "Show"}</button>
            ${isBusy && html`<button type="button" onClick=${this.stop}>Stop</button>`}
        </form>`;
    }

    renderProgress() {
        const { start, range, scanned, isEnd, isBusy, next, skipped, sought, events } = this.state;
        if (start === "follow")
            return skipped > 0 && html`<p class="muted">${count(skipped)} events came too fast to be shown.</p>`;
        if (!range) return null;
        return html`<div class="row">
            <span class="muted" role="status"
                >${count(events.length)} shown, ${count(scanned)} read. ${heldIn(range)}</span
            >
            ${
                !isEnd &&
                !isBusy &&
                html`<button type="button" onClick=${() => this.readOn({ from_sequence: next }, sought)}>
                    ${sought ? "Search on" : "More"}
                </button>`
            }
        </div>`;
    }
}

const nothing = {
    events: [],
    sought: "",
    scanned: 0,
    skipped: 0,
    next: null,
    isEnd: false,
    isBusy: false,
    range: null,
    error: null,
};

const heldIn = ({ first_sequence: first, end_sequence: end }) =>
    end > first ? `The channel holds sequences ${first} to ${end - 1}.` : "The channel is empty.";

function placeOf(start, from) {
    if (start === "sequence" && from) return { from_sequence: from };
    if (start === "time" && from) return { from_time: new Date(from).getTime() / 1000 };
    return {};
}
