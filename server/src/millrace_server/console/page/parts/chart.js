// A chart over time, drawn by uPlot, which is loaded when the first one is shown.
import { clock } from "../format.js";
import { Component, html } from "../html.js";
import { onThemeChange } from "../theme.js";
import { Card } from "./table.js";

const HEIGHT = 200;
// Pixels between times on the axis, which are wide with their seconds.
const TIME_SPACE = 76;
const DASHES = [[], [6, 4]];
let library = null;

// uPlot's own module is three times the size of this script, which sets a global variable.
function loaded() {
    library ??= new Promise((resolve, reject) => {
        const script = document.createElement("script");
        script.src = new URL("../vendor/uplot.js", import.meta.url);
        script.onload = () => resolve(globalThis.uPlot);
        script.onerror = reject;
        document.head.append(script);
    });
    return library;
}

// Times on the axis, with seconds only where the ticks are closer than a minute.
const clocks = (_plot, ticks, _axis, _space, step) => ticks.map((tick) => clock(tick).slice(0, step < 60 ? 8 : 5));

// A series is {label, colour, values}; colours are names of custom properties.
export class Chart extends Component {
    async componentDidMount() {
        this.endThemeWatch = onThemeChange(() => this.draw());
        this.sizes = new ResizeObserver(([entry]) =>
            this.plot?.setSize({ width: entry.contentRect.width, height: HEIGHT }),
        );
        this.sizes.observe(this.place);
        this.uPlot = await loaded();
        this.draw();
    }

    componentDidUpdate() {
        this.plot?.setData(this.data);
    }

    componentWillUnmount() {
        this.endThemeWatch();
        this.sizes.disconnect();
        this.plot?.destroy();
        this.place = null;
    }

    get data() {
        const { times, series } = this.props;
        return [times, ...series.map(({ values }) => values)];
    }

    draw() {
        if (!this.uPlot || !this.place) return;
        this.plot?.destroy();
        this.plot = new this.uPlot(this.options(), this.data, this.place);
    }

    options() {
        const { series, format } = this.props;
        const [text, line] = [this.colourOf("muted"), this.colourOf("line")];
        const axis = {
            stroke: text,
            grid: { stroke: line, width: 1 },
            ticks: { show: false },
            font: "12px system-ui, sans-serif",
        };
        return {
            width: this.place.clientWidth,
            height: HEIGHT,
            cursor: { sync: { key: "history" }, drag: { x: false, y: false } },
            scales: { y: { range: (_plot, _low, high) => [0, high > 0 ? 1.1 * high : 1] } },
            axes: [
                { ...axis, size: 32, space: TIME_SPACE, values: clocks },
                { ...axis, size: 56, values: (_plot, ticks) => ticks.map(format) },
            ],
            series: [
                { value: (_plot, value) => clock(value) },
                ...series.map(({ label, colour }, index) => ({
                    label,
                    stroke: this.colourOf(colour),
                    width: 2,
                    dash: DASHES[index],
                    points: { show: false },
                    value: (_plot, value) => format(value),
                })),
            ],
        };
    }

    // A canvas does not know custom properties, nor `light-dark`.
    colourOf(name) {
        this.place.style.color = `var(--${name})`;
        const { color } = getComputedStyle(this.place);
        this.place.style.color = "";
        return color;
    }

    render({ title, series, format }) {
        return html`<${Card}
            title=${title}
            acts=${html`<span class="small muted">${series.map((one) => summary(one, format, series.length > 1)).join(" · ")}</span>`}
        >
            <div class="body"><div class="chart" ref=${(place) => (this.place = place)}></div></div>
        <//>`;
    }
}

function summary({ label, values }, format, isNamed) {
    const known = values.filter((value) => value !== null);
    const name = isNamed ? `${label}: ` : "";
    if (known.length === 0) return `${name}nothing yet`;
    return `${name}now ${format(known.at(-1))}, highest ${format(Math.max(...known))}`;
}
