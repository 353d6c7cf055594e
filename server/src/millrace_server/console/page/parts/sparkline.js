// The last hour of a channel's depth as a small line. Figures beside it say the same, so it is hidden from readers.
import { Component, html } from "../html.js";

const WIDTH = 120;
const HEIGHT = 28;

export class Sparkline extends Component {
    shouldComponentUpdate({ values }) {
        return String(values) !== String(this.props.values);
    }

    render({ values }) {
        const highest = Math.max(1, ...values.filter((value) => value !== null));
        const step = WIDTH / Math.max(values.length - 1, 1);
        const points = values.flatMap((value, index) =>
            value === null
                ? []
                : [[(index * step).toFixed(1), (HEIGHT - 1 - ((HEIGHT - 2) * value) / highest).toFixed(1)]],
        );
        const line = points.map((point) => point.join(",")).join(" ");
        const [left, right] = [points[0]?.[0], points.at(-1)?.[0]];
        const area = points.length > 0 ? `${left},${HEIGHT} ${line} ${right},${HEIGHT}` : "";
        return html`<svg
            class="spark"
            viewBox=${`0 0 ${WIDTH} ${HEIGHT}`}
            preserveAspectRatio="none"
            aria-hidden="true"
        >
            <polygon points=${area} />
            <polyline points=${line} />
        </svg>`;
    }
}
