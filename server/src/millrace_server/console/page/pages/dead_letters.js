// Dead letters: why each event was set aside and where it comes from; those that are chosen are replayed.
import { replayDeadLetters } from "../acts.js";
import { channelPath, get } from "../api.js";
import { count, time } from "../format.js";
import { Component, html } from "../html.js";
import { Live } from "../live.js";
import { openAct } from "../parts/act_dialog.js";
import { ChannelPicker } from "../parts/channel_picker.js";
import { EventTable } from "../parts/event_table.js";
import { Page } from "../parts/page.js";
import { Refusal } from "../parts/status.js";
import { Card, Table } from "../parts/table.js";
import { link, withQuery } from "../routes.js";

const PAGE_LETTERS = 50;
const SHOWN_LETTERS_MAX = 500;

export class DeadLetters extends Component {
    render({ name }) {
        return html`<${Page} title=${name || "Dead letters"} above=${name && "Dead letters in"}>
            <${ChannelPicker} name=${name} linkOf=${link.deadLetters} />
            ${name ? html`<${Letters} channel=${name} />` : html`<${Live} path="/api/flow">${listOf}<//>`}
        <//>`;
    }
}

const COLUMNS = [
    {
        title: "Dead-letter channel",
        isName: true,
        cell: ({ name }) => html`<a href=${link.deadLetters(name)}>${name}</a>`,
    },
    { title: "Events", isNumber: true, cell: ({ queued_events }) => count(queued_events) },
];

function listOf({ nodes, edges }) {
    const keys = new Set(edges.filter((edge) => edge.is_dead_letter).map((edge) => edge.to));
    const rows = nodes.filter(({ key, kind }) => kind === "channel" && keys.has(key));
    return html`<${Card} title="Where components put dead letters">
        <${Table}
            label="Dead-letter channels"
            columns=${COLUMNS}
            rows=${rows}
            keyOf=${({ key }) => key}
            empty="No component has a dead-letter channel. Open a channel by its name to see the dead letters that clients put there."
        />
    <//>`;
}

const LETTER_COLUMNS = [
    { title: "Reason", look: "reason", cell: ({ reason }) => reason },
    {
        title: "From",
        look: "wide",
        cell: ({ origin, component }) => html`${origin || "–"}<br /><small class="muted">${component}</small>`,
    },
    { title: "Set aside", look: "wide fixed", cell: ({ time: at }) => time(at) },
];

const FILTERS = [
    ["reason", "Reason contains"],
    ["origin", "From channel"],
];

class Letters extends Component {
    state = {
        letters: [],
        chosen: new Set(),
        origin: "",
        reason: "",
        next: null,
        isEnd: true,
        error: null,
        isBusy: true,
    };

    componentDidMount() {
        this.read();
    }

    componentWillUnmount() {
        this.request?.abort();
    }

    read = (event) => {
        event?.preventDefault();
        this.setState({ letters: [], chosen: new Set() });
        this.readFrom("");
    };

    async readFrom(from_sequence) {
        this.request?.abort();
        this.request = new AbortController();
        const { signal } = this.request;
        const { origin, reason } = this.state;
        this.setState({ isBusy: true, error: null });
        try {
            const query = { from_sequence, origin, reason, max_events: PAGE_LETTERS };
            const response = await get(withQuery(channelPath(this.props.channel, "/dead_letters"), query), signal);
            const add = ({ letters }) => ({ letters: [...letters, ...response.events].slice(-SHOWN_LETTERS_MAX) });
            this.setState(add);
            this.setState({ next: response.next_sequence, isEnd: response.is_end, isBusy: false });
        } catch (error) {
            if (!signal.aborted) this.setState({ error, isBusy: false });
        }
    }

    choose = (sequence, isChosen) => {
        const chosen = new Set(this.state.chosen);
        if (isChosen) chosen.add(sequence);
        else chosen.delete(sequence);
        this.setState({ chosen });
    };

    chooseAll = (event) => {
        const sequences = event.target.checked ? this.state.letters.map(({ sequence }) => sequence) : [];
        this.setState({ chosen: new Set(sequences) });
    };

    replay = () => openAct(replayDeadLetters(this.props.channel, [...this.state.chosen], this.read));

    render({ channel }, { letters, chosen, next, isEnd, error, isBusy }) {
        return html` ${this.renderFilter()} <${Refusal} error=${error} />
            <${Card} title=${`${count(letters.length)} shown`} acts=${this.renderChoice()}>
                ${
                    letters.length > 0
                        ? html`<${EventTable}
                              label="Dead letters"
                              channel=${channel}
                              events=${letters}
                              lead=${this.boxOf}
                              columns=${LETTER_COLUMNS}
                          />`
                        : html`<p class="empty">${isBusy ? "Reading…" : "No dead letters."}</p>`
                }
            <//>
            ${
                !isEnd &&
                !isBusy &&
                html`<div class="row"><button type="button" onClick=${() => this.readFrom(next)}>More</button></div>`
            }`;
    }

    boxOf = ({ sequence }) =>
        html`<input
            type="checkbox"
            aria-label=${`Choose ${sequence}`}
            checked=${this.state.chosen.has(sequence)}
            onChange=${(event) => this.choose(sequence, event.target.checked)}
        />`;

    renderFilter() {
        return html`<form class="row" onSubmit=${this.read}>
            ${FILTERS.map(
                ([name, label]) =>
                    html`<input
                        key=${name}
                        class="grow"
                        type="search"
                        aria-label=${label}
                        placeholder=${label}
                        value=${this.state[name]}
                        onInput=${(event) => this.setState({ [name]: event.target.value })}
                    />`,
            )}
            <button>Filter</button>
        </form>`;
    }

    renderChoice() {
        const { letters, chosen } = this.state;
        return html` <label class="check"
                ><input
                    type="checkbox"
                    checked=${chosen.size > 0 && chosen.size === letters.length}
                    onChange=${this.chooseAll}
                />
                All shown</label
            >
            <button class="primary" type="button" disabled=${chosen.size === 0} onClick=${this.replay}>
                Replay ${chosen.size > 0 ? count(chosen.size) : "chosen"}
            </button>`;
    }
}
