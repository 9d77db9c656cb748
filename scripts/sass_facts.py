#!/usr/bin/env python3
# scripts/sass_facts.py FILE... | --tools | --self-test
# The machine code that the speed of the sm90 forward kernels rests on, which a compiler changes without a word: given
# objects, libraries or cubins, checks of every such kernel in them that its main loop
#   - touches no local memory: nothing is spilled there;
#   - has two steps, one for each set of weights;
#   - moves nothing to uniform registers between the matrix instructions of a step (R2UR) and does not ask whether its
#     warps diverge (BRA.DIV): ptxas takes the loop for uniform, and issues the instructions back to back;
#   - waits twice a step, once with one group of products under way and once for all, and not after each product; never
#     where a branch leads around it: warps of a warpgroup may not wait by themselves;
#   - takes its exponentials between the two waits, while the second group runs;
# and, where lists are joined, that the next wait behind the loop leaves a group under way: the first scores of the next list.
# Disassembled by cuobjdump: from beside nvcc, from PATH, or from .venv, where scripts/test puts it; --tools says which.
import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
KERNEL = re.compile(r"_ZN7keyhole4sm907forwardI")
INSTRUCTION = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(.*?)\s*;")
# With a condition; and without, the way back from code that was moved out of the way.
BRANCH = re.compile(r"^@\S+\s+BRA(?:\.\S+)?\s+(?:!?U?P\d+,\s*)?0x([0-9a-f]+)")
JUMP = re.compile(r"^BRA(?:\.\S+)?\s+0x([0-9a-f]+)")
SOFTCAP = "BendE1"  # Bend::softcap among the template arguments
JOINED = ("ForwardDim96", "ForwardDim128", "ForwardDim192")  # kJoins in forward_consumer.cuh
PRODUCT = re.compile(r"\bHGMMA\.64x(\d+)x16\S*\s+R\d+,\s*(gdesc|R\d+)")


def find_tools():
    """The folder of cuobjdump and nvdisasm, or None."""
    nvcc = os.environ.get("CUDACXX") or shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    folders = [pathlib.Path(nvcc).resolve().parent, *map(pathlib.Path, os.environ["PATH"].split(os.pathsep))]
    folders += ROOT.glob(".venv/lib/python3*/site-packages/nvidia/cu13/bin")
    for folder in folders:
        if all(os.access(folder / tool, os.X_OK) for tool in ("cuobjdump", "nvdisasm")):
            return folder
    return None


def disassemble(path, tools):
    """{mangled name: [(address, instruction)]}"""
    environment = {**os.environ, "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"}
    text = subprocess.run([tools / "cuobjdump", "-sass", path], env=environment, check=True, capture_output=True,
                          text=True).stdout
    return functions_of(text)


def functions_of(text):
    functions, code = {}, []
    for line in text.splitlines():
        if line.strip().startswith("Function : "):
            code = functions.setdefault(line.split(" : ", 1)[1].strip(), [])
        elif match := INSTRUCTION.match(line):
            code.append((int(match[1], 16), match[2]))
    return functions


def short_name(mangled):
    """forward<__nv_bfloat16, ForwardDim128>: the first two template arguments are names with their lengths before them."""
    names, rest = [], mangled[KERNEL.match(mangled).end():]
    while match := re.match(r"(?:N?S\d*_)*(\d+)", rest):
        length, begin = int(match[1]), match.end()
        names.append(rest[begin:begin + length])
        rest = rest[begin + length:]
    return f"forward<{', '.join(names)}>"


def target_of(text, kind=BRANCH):
    """Where a branch leads, or -1 where it is none of that kind."""
    match = kind.search(text)
    return int(match[1], 16) if match else -1


def main_loops(code):
    """The innermost loops that multiply: (address of the first instruction, of the last)."""
    spans = [(target_of(text), address) for address, text in code if 0 <= target_of(text) < address]
    products = [address for address, text in code if "HGMMA" in text]
    spans = [(a, b) for a, b in spans if any(a <= p <= b for p in products)]
    return [s for s in spans if not any(o != s and s[0] <= o[0] and o[1] <= s[1] for o in spans)]


def kind_of_wait(text):
    """How many groups of products may be under way behind it."""
    return text.rsplit(",", 1)[1].strip()


def border_objections(code, end):
    """What is wrong behind a main loop of joined lists, in words."""
    kinds = [kind_of_wait(text) for address, text in code if address > end and "WARPGROUP.DEPBAR" in text]
    if kinds[:1] == ["0x1"]:
        return []
    return [f"waits for {kinds[0] if kinds else 'nothing'} behind the loop, not for 0x1: lists are not joined"]


def steps_of(loop):
    """[(products, what follows the wait for the scores)], by the waits that leave one group under way."""
    steps, first = [], 0
    for i, (_, text) in enumerate(loop):
        if "WARPGROUP.DEPBAR" in text and kind_of_wait(text) == "0x1":
            end = next((j for j in range(i, len(loop)) if "HGMMA" in loop[j][1]), len(loop))
            steps.append((loop[first:i], loop[i + 1:end]))
            first = end
    return steps


def detours_of(code, begin, end):
    """Pieces of code outside a loop that branches of it lead to and that lead back into it, such as what is done where
    the base of a row was guessed wrong, if ptxas moves it out of the way: [[(address, instruction)]]"""
    places, pieces = {address: i for i, (address, _) in enumerate(code)}, []
    for target in {target_of(text) for address, text in code if begin <= address <= end} - {-1}:
        if begin <= target <= end or target not in places:
            continue
        piece = []
        for address, text in code[places[target]:]:
            piece.append((address, text))
            if begin <= target_of(text, JUMP) <= end:
                pieces.append(piece)
            if re.match(r"(BRA|EXIT|RET)\b", text):
                break
    return pieces


def step_objections(products, rest, loop_end, powers):
    """What is wrong with a step of a main loop that takes so many exponentials of each score, in words."""
    found = []
    places = [i for i, (_, text) in enumerate(products) if "HGMMA" in text]
    between = products[places[0]:places[-1]] if places else []
    if count := sum(bool(re.search(r"\bR2UR\b", text)) for _, text in between):
        found.append(f"{count} R2UR between the products")
    if count := sum("WARPGROUP.DEPBAR" in text for _, text in products):
        found.append(f"{count} waits in front of the scores")
    # What a branch leads around is rare: where the base of a row was guessed wrong. Those that leave the loop lead to waits
    # for copies, and come back.
    spans = [(address, target_of(text)) for address, text in rest if target_of(text) <= loop_end]
    is_usual = [not any(a < address < b for a, b in spans) for address, _ in rest]
    waits = [i for i, (_, text) in enumerate(rest) if "WARPGROUP.DEPBAR" in text]
    if any(not is_usual[i] for i in waits):
        found.append("a wait that a branch leads around")
    kinds = [kind_of_wait(rest[i][1]) for i in waits if is_usual[i]]
    if kinds != ["0x0"]:
        return [*found, f"waits for {', '.join(kinds) or 'no'} groups behind the scores, not for 0x0"]
    columns = next((int(m[1]) for _, text in products if (m := PRODUCT.search(text)) and m[2] == "gdesc"), 0)
    end = next(i for i in waits if is_usual[i])
    usual = [i for i, (_, text) in enumerate(rest) if is_usual[i] and "MUFU.EX2" in text]
    inside = sum(i < end for i in usual)
    # A thread holds half a row's worth of scores: 64 rows x columns among 128 threads.
    if columns == 0 or inside != powers * (columns // 2):
        found.append(f"{inside} exponentials between the waits; a thread has {columns // 2} scores")
    if outside := len(usual) - inside:
        found.append(f"{outside} exponentials outside the waits, where no product runs")
    return found


def objections(loop, detours, powers=1):
    """What is wrong with a main loop, [(address, instruction)], and what it makes a detour to, in words."""
    found = []
    aside = [text for piece in detours for _, text in piece]
    if any("WARPGROUP.DEPBAR" in text for text in aside):
        found.append("a wait that a branch leads to")
    for what in ("LDL", "STL"):
        if count := sum(bool(re.search(rf"\b{what}\b", text)) for text in [*aside, *(text for _, text in loop)]):
            found.append(f"{count} {what}: registers are spilled")
    if any("BRA.DIV" in text for _, text in loop):
        found.append("BRA.DIV: the loop is not taken for uniform")
    steps = steps_of(loop)
    if len(steps) != 2:
        return [*found, f"{len(steps)} steps that leave a product under way, not two"]
    for products, rest in steps:
        found += step_objections(products, rest, loop[-1][0], powers)
    return found


def check(functions):
    """[(kernel, what is wrong with it)] of the forward kernels among them."""
    verdicts = []
    for name, code in functions.items():
        if not KERNEL.match(name):
            continue
        found, loops, kernel = [], main_loops(code), short_name(name)
        for begin, end in loops:
            loop = [(address, text) for address, text in code if begin <= address <= end]
            # A softcap takes one exponential for the tangent, beside that of the weight.
            found += objections(loop, detours_of(code, begin, end), 2 if SOFTCAP in name else 1)
            if kernel.endswith(tuple(f" {config}>" for config in JOINED)):
                found += border_objections(code, end)
        verdicts.append((kernel + " with a softcap" * (SOFTCAP in name), found if loops else ["no loop multiplies"]))
    return verdicts


def good_step(at):
    """A step of 8 scores a thread, from address `at` to at + 0x100."""
    exponentials = "\n".join(f" /*{at + 0x40 + 16 * i:04x}*/       MUFU.EX2 R{i}, R{i} ;" for i in range(8))
    return f"""
 /*{at:04x}*/       WARPGROUP.ARRIVE ;
 /*{at + 0x10:04x}*/       HGMMA.64x16x16.F32 R88, gdesc[UR24], RZ, !UPT, gsb0 ;
 /*{at + 0x20:04x}*/       HGMMA.64x16x16.F32 R24, R152, gdesc[UR12].tnspB, R24, gsb0 ;
 /*{at + 0x30:04x}*/       WARPGROUP.DEPBAR.LE gsb0, 0x1 ;
{exponentials}
 /*{at + 0xc0:04x}*/       WARPGROUP.DEPBAR.LE gsb0, 0x0 ;
 /*{at + 0xd0:04x}*/  @!P1 BRA 0x{at + 0xf0:x} ;
 /*{at + 0xe0:04x}*/       MUFU.EX2 R8, R8 ;
 /*{at + 0xf0:04x}*/       R2UR UR4, R2 ;"""


GOOD = f"""
    Function : _ZN7keyhole4sm907forwardI6__halfNS0_12ForwardDim16EEEvi
 /*0000*/       R2UR UR4, R2 ;{good_step(0x10)}
 /*0110*/  @!P2 BRA 0x260 ;{good_step(0x120)}
 /*0250*/   @P0 BRA 0x10 ;
 /*0260*/       LDL R1, [R2] ;
    Function : _ZN7keyhole4sm908backwardIiEEvi
 /*0000*/       EXIT ;
"""


def moved_out(rare):
    """GOOD with the rare piece of the first step behind the loop, and these instructions for it."""
    text = GOOD.replace("@!P1 BRA 0x100", "@P1 BRA 0x270").replace("/*00f0*/       MUFU.EX2 R8, R8 ;", "/*00f0*/       NOP ;")
    return text.replace("[R2] ;\n", f"[R2] ;\n /*0268*/       EXIT ;\n{rare}\n /*0280*/       BRA 0x100 ;\n", 1)


def self_test():
    first = "/*0020*/       HGMMA.64x16x16.F32 R88, gdesc[UR24], RZ, !UPT, gsb0 ;"
    wait, last = "/*0040*/       WARPGROUP.DEPBAR.LE gsb0, 0x1 ;", "/*00d0*/       WARPGROUP.DEPBAR.LE gsb0, 0x0 ;"
    rare = "/*00f0*/       MUFU.EX2 R8, R8 ;"
    cases = [
        (GOOD, []),
        (GOOD.replace("/*00a0*/       MUFU.EX2", "/*00a0*/       FADD"),
         ["7 exponentials between the waits; a thread has 8 scores"]),
        (GOOD.replace("/*0210*/       R2UR UR4", "/*0210*/       MUFU.EX2 R9"),
         ["1 exponentials outside the waits, where no product runs"]),
        (GOOD.replace(first, first + "\n /*0028*/       R2UR UR12, R7 ;"), ["1 R2UR between the products"]),
        (GOOD.replace(wait, wait + "\n /*0048*/       STL [R2], R1 ;"), ["1 STL: registers are spilled"]),
        (GOOD.replace(last, "/*00d0*/       NOP ;"), ["waits for no groups behind the scores, not for 0x0"]),
        (GOOD.replace(rare, rare + "\n /*00f8*/       WARPGROUP.DEPBAR.LE gsb0, 0x0 ;"),
         ["a wait that a branch leads around"]),
        (GOOD.replace(first, first + "\n /*0028*/       WARPGROUP.DEPBAR.LE gsb0, 0x0 ;"),
         ["1 waits in front of the scores"]),
        (GOOD.replace("/*00c0*/       MUFU.EX2 R7, R7 ;", "/*00c0*/       MUFU.EX2 R7, R7 ;\n /*00c8*/  @!P3 BRA 0x130 ;"),
         ["a wait that a branch leads around", "waits for no groups behind the scores, not for 0x0"]),
        (moved_out(" /*0270*/       MUFU.EX2 R8, R8 ;"), []),
        (moved_out(" /*0270*/       WARPGROUP.DEPBAR.LE gsb0, 0x0 ;\n /*0278*/       STL [R2], R1 ;"),
         ["a wait that a branch leads to", "1 STL: registers are spilled"]),
        (GOOD.replace(wait, wait.replace("0x1", "0x0")), ["1 steps that leave a product under way, not two"]),
        (GOOD.replace("@!P1 BRA 0x100", "BRA.DIV UR4, 0x100"),
         ["BRA.DIV: the loop is not taken for uniform", "1 exponentials outside the waits, where no product runs"]),
        (GOOD.replace("@P0 BRA 0x10 ", "@P0 BRA 0x300 "), ["no loop multiplies"]),
    ]
    cases = [(text, "ForwardDim16", want) for text, want in cases]
    joined = GOOD.replace("ForwardDim16", "ForwardDim96")
    behind = " /*0258*/       WARPGROUP.DEPBAR.LE gsb0, %s ;\n /*0260*/"
    cases += [
        (joined.replace(" /*0260*/", behind % "0x1"), "ForwardDim96", []),
        (joined.replace(" /*0260*/", behind % "0x0"), "ForwardDim96",
         ["waits for 0x0 behind the loop, not for 0x1: lists are not joined"]),
        (joined, "ForwardDim96", ["waits for nothing behind the loop, not for 0x1: lists are not joined"]),
    ]
    failures = 0
    for text, config, want in cases:
        got = check(functions_of(text))
        if got != [(f"forward<__half, {config}>", want)]:
            failures += 1
            print(f"wanted {want}, got {got}")
    print(f"sass_facts: {len(cases)} self-tests, {failures} failures")
    return failures != 0


def main():
    arguments = sys.argv[1:]
    if arguments == ["--self-test"]:
        sys.exit(self_test())
    if not arguments:
        sys.exit("usage: scripts/sass_facts.py FILE... | --tools | --self-test")
    tools = find_tools()
    if tools is None:
        print("sass_facts: skipped: no cuobjdump and nvdisasm beside nvcc, in PATH or in .venv")
        sys.exit(77)
    if arguments == ["--tools"]:
        sys.exit(print(tools))
    verdicts = [verdict for path in arguments for verdict in check(disassemble(path, tools))]
    for name, found in verdicts:
        print(f"{name}: {'; '.join(found) or 'ok'}")
    num_bad = sum(bool(found) for _, found in verdicts)
    print(f"sass_facts: {len(verdicts)} kernels, {num_bad} not as they should be")
    sys.exit(num_bad > 0 or not verdicts)


if __name__ == "__main__":
    main()
