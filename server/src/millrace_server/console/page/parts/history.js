// The last hour of a channel: its depth, and what came in and went out.
import { channelPath } from "../api.js";
import { compact, rate } from "../format.js";
import { html } from "../html.js";
import { Live } from "../live.js";
import { Chart } from "./chart.js";

const POINTS = 360;

export const History = ({ channel }) =>
    html`<${Live} path=${channelPath(channel, `/history?points=${POINTS}`)} seconds=${10}>
        ${(history) =>
            html`<div class="grid">
                <${Chart}
                    title="Depth"
                    times=${history.time}
                    format=${compact}
                    series=${[{ label: "Events", colour: "accent", values: history.depth }]}
                />
                <${Chart}
                    title="Rates"
                    times=${history.time}
                    format=${rate}
                    series=${[
                        { label: "In", colour: "accent", values: history.put_rate },
                        { label: "Out", colour: "second", values: history.take_rate },
                    ]}
                />
            </div>`}
    <//>`;
