// src/render/page_style.cpp
// The style sheet of the page that `keyhole show --html` writes. Light and dark, no fonts to load.
#include "render/html.h"

namespace keyhole {

const char* const kPageStyle = R"css(
:root{color-scheme:light;--paper:#f4f6f9;--card:#fff;--ink:#18202b;--soft:#657184;--line:#dfe4ea;--grid:#e6eaef;
--pair:#2166c4;--pale:#c3d8f4;--none:#fff;--full:#12946a;--partial:#d98a12;--cross:#18202b14;--yes:#0d7d57;--no:#b3372f;--focus:#2166c4;
--part0:#2166c4;--part1:#c4590b;--part2:#12805c;--part3:#8a4fb5;--part4:#94701a;--part5:#6b7685;
--shadow:0 1px 2px #1020300f,0 4px 16px #1020300a}
@media(prefers-color-scheme:dark){:root:not([data-theme=light]){color-scheme:dark;--paper:#0e1218;--card:#161c25;--ink:#e7ecf3;--soft:#93a0b3;--line:#2a3340;--grid:#232b36;
--pair:#62a6f7;--pale:#274a72;--none:#12171f;--full:#2fc795;--partial:#f0b04a;--cross:#ffffff17;--yes:#4bd3a3;--no:#ff8a80;--focus:#62a6f7;--part0:#62a6f7;--part1:#f0924a;--part2:#3fc797;--part3:#c08ae8;--part4:#d8b24a;--part5:#93a0b3;--shadow:none}}
:root[data-theme=dark]{color-scheme:dark;--paper:#0e1218;--card:#161c25;--ink:#e7ecf3;--soft:#93a0b3;--line:#2a3340;--grid:#232b36;
--pair:#62a6f7;--pale:#274a72;--none:#12171f;--full:#2fc795;--partial:#f0b04a;--cross:#ffffff17;--yes:#4bd3a3;--no:#ff8a80;--focus:#62a6f7;--part0:#62a6f7;--part1:#f0924a;--part2:#3fc797;--part3:#c08ae8;--part4:#d8b24a;--part5:#93a0b3;--shadow:none}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:14px/1.5 system-ui,-apple-system,"Segoe UI","DejaVu Sans",sans-serif}
code,.mono,pre{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace}
header{display:flex;gap:16px;align-items:flex-start;justify-content:space-between;padding:18px 24px 12px}
h1{margin:0;font-size:19px;line-height:1.3;font-weight:650;overflow-wrap:anywhere}
header p{margin:3px 0 0;color:var(--soft)}
main{display:grid;grid-template-columns:minmax(320px,1fr) 380px;gap:16px;padding:0 24px 24px;align-items:start}
.card{background:var(--card);border:1px solid var(--line);border-radius:10px;box-shadow:var(--shadow)}
.view{position:sticky;top:12px;display:flex;flex-direction:column;height:calc(100vh - 110px);min-height:420px;overflow:hidden}
.bar{display:flex;flex-wrap:wrap;gap:8px;align-items:center;padding:9px 12px;border-bottom:1px solid var(--line)}
.bar .gap{flex:1}
button,select{font:inherit;color:var(--ink);background:var(--card);border:1px solid var(--line);border-radius:7px;padding:3px 10px;cursor:pointer;min-height:30px}
button:hover,select:hover{border-color:var(--soft)}
button:focus-visible,select:focus-visible,canvas:focus-visible{outline:2px solid var(--focus);outline-offset:1px}
label{color:var(--soft);display:flex;gap:7px;align-items:center}
[hidden]{display:none!important}
.stage{position:relative;flex:1;min-height:0}
canvas{position:absolute;inset:0;width:100%;height:100%;display:block;touch-action:none;cursor:crosshair}
canvas.dragging{cursor:grabbing}
.legend{display:flex;flex-wrap:wrap;gap:4px 16px;padding:8px 12px;border-top:1px solid var(--line);color:var(--soft);font-size:12.5px}
.key{display:inline-block;width:11px;height:11px;border-radius:2px;margin-right:6px;vertical-align:-1px;border:1px solid var(--line)}
.key.full{border:2px solid var(--full)}.key.partial{border:2px solid var(--partial)}.key.absent{border:1px dashed var(--soft)}
aside{display:flex;flex-direction:column;gap:16px}
aside section{padding:13px 16px 15px}
h2{margin:0 0 8px;font-size:12px;letter-spacing:.06em;text-transform:uppercase;color:var(--soft);font-weight:600}
.verdict{display:flex;flex-wrap:wrap;align-items:baseline;gap:0 10px;font-size:16px;font-weight:650;min-height:25px}
.verdict .mono{font-weight:600}
.yes{color:var(--yes)}.no{color:var(--no)}.soft{color:var(--soft)}
.why,.why ul{list-style:none;margin:0;padding:0}
.why{margin-top:6px;min-height:122px}
.why ul{margin-left:8px;padding-left:13px;border-left:1px solid var(--line)}
.why li{padding:1px 0}
.why .row{display:flex;gap:8px;align-items:baseline}
.why .mark{flex:none;width:1em;font-weight:700}
.why code{overflow-wrap:anywhere}
.why .words{color:var(--soft);font-size:12.5px}
.sees{margin:8px 0 0;padding-top:8px;border-top:1px solid var(--line);color:var(--soft);font-size:12.5px;overflow-wrap:anywhere;min-height:47px}
table{border-collapse:collapse;width:100%;font-size:13px}
td,th{padding:3.5px 0;text-align:left;vertical-align:top;border-top:1px solid var(--line);font-weight:400}
tr:first-child td,tr:first-child th{border-top:0}
th{color:var(--soft);padding-right:14px;white-space:nowrap}
td.number{text-align:right;font-variant-numeric:tabular-nums}
pre{margin:0;white-space:pre-wrap;font-size:12px}
footer{padding:0 24px 22px;color:var(--soft);font-size:12.5px}
kbd{font:11.5px ui-monospace,Menlo,Consolas,"DejaVu Sans Mono",monospace;border:1px solid var(--line);border-radius:4px;padding:0 4px;background:var(--card)}
@media(max-width:900px){main{grid-template-columns:1fr;padding:0 12px 16px}header{padding:14px 12px 10px}.view{position:static;height:70vh}footer{padding:0 12px 16px}}
)css";

}  // namespace keyhole
