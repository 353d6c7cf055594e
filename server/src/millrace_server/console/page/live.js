// Polled responses of the server: requested every 2 seconds, and not at all while the page is hidden.
import { get } from "./api.js";
import { clock } from "./format.js";
import { Component, html } from "./html.js";
import { Refusal } from "./parts/status.js";

const INTERVAL_SECONDS = 2;
const RETRY_SECONDS_MAX = 30;
const shown = new Set();

// Asks for everything on the page at once, after something was changed.
export const refreshAll = () => {
    for (const live of shown) live.restart();
};

// Renders its child with the newest response to a GET of `path`; until the next one arrives, with the last one.
export class Live extends Component {
    state = { data: null, error: null, at: null };

    componentDidMount() {
        shown.add(this);
        document.addEventListener("visibilitychange", this.restart);
        this.restart();
    }

    componentDidUpdate(before) {
        if (before.path !== this.props.path) this.restart();
    }

    componentWillUnmount() {
        shown.delete(this);
        document.removeEventListener("visibilitychange", this.restart);
        this.stop();
    }

    stop() {
        clearTimeout(this.timer);
        this.request?.abort();
    }

    restart = () => {
        this.stop();
        this.failures = 0;
        if (!document.hidden) this.poll();
    };

    poll = async () => {
        const request = new AbortController();
        this.request = request;
        try {
            const data = await get(this.props.path, request.signal);
            if (request.signal.aborted) return;
            this.failures = 0;
            this.setState({ data, error: null, at: Date.now() / 1000 });
        } catch (error) {
            if (request.signal.aborted) return;
            this.failures += 1;
            this.setState({ error });
        }
        // With thousands of channels the server asks for more time between two overviews.
        const interval = this.state.data?.poll_seconds ?? this.props.seconds ?? INTERVAL_SECONDS;
        const seconds = interval * 2 ** this.failures;
        this.timer = setTimeout(this.poll, 1000 * Math.min(seconds, Math.max(interval, RETRY_SECONDS_MAX)));
    };

    // A `frame` surrounds the response, and is shown before there is one and without one.
    render({ children, frame = (_data, content) => content }, { data, error, at }) {
        const show = [children].flat()[0];
        const content = html`
            <${Refusal} error=${error} note=${at && `Figures are from ${clock(at)}.`} />
            ${data ? show(data) : !error && html`<p class="empty">Loading…</p>`}
        `;
        return frame(data, content);
    }
}
