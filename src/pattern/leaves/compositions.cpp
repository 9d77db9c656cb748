// src/pattern/leaves/compositions.cpp
// Patterns that are known by a name but made of others. They print their name and mean their parts.
//
//   strided(3)            streaming(1, 2)       longformer(2, 1)      bigbird(2, 3, 0, 0, 1)
//   # . . . . .           # . . . . .           # # # # # #           # # # # . .
//   # # . . . .           # # . . . .           # # # . . .           # # # # . .
//   # # # . . .           # # # . . .           # # # # . .           # # # # # #
//   # # # # . .           # . # # . .           # . # # # .           # # # # # #
//   . # # # # .           # . . # # .           # . . # # #           . . # # # #
//   . . # # # #           # . . . # #           # . . . # #           . . # # # #
#include <algorithm>

#include "pattern/leaves/block_band.h"
#include "pattern/leaves/check_argument.h"
#include "pattern/node.h"

namespace keyhole {

Pattern strided(int64_t stride) {
  check_argument("strided", "stride", stride, 1);
  const Pattern meaning = causal() & (window(stride - 1, 0) | dilated(stride));
  return Pattern(make_named(say("strided(", stride, ")"), meaning.node()));
}

Pattern streaming(int64_t num_sinks, int64_t num_recent) {
  check_argument("streaming", "sinks", num_sinks, 0);
  check_argument("streaming", "window", num_recent, 1);
  // The window holds num_recent tokens, the query itself included.
  const Pattern meaning = causal() & (window(num_recent - 1) | sinks(num_sinks));
  return Pattern(make_named(say("streaming(", num_sinks, ", ", num_recent, ")"), meaning.node()));
}

Pattern longformer(int64_t width, int64_t globals) {
  check_argument("longformer", "window", width, 0);
  check_argument("longformer", "globals", globals, 0);
  const Pattern meaning = window(width / 2) | global(globals);
  return Pattern(make_named(say("longformer(", width, ", ", globals, ")"), meaning.node()));
}

Pattern bigbird(int64_t block, int64_t width, int64_t randoms, int64_t globals, int64_t seed) {
  check_argument("bigbird", "block", block, 1);
  check_argument("bigbird", "window", width, 1);
  KEYHOLE_CHECK(width % 2 == 1, "bigbird: window is ", width,
                "; it counts the block itself and equally many on both sides: use ", width - 1,
                " or ", width + 1);
  check_argument("bigbird", "randoms", randoms, 0);
  check_argument("bigbird", "globals", globals, 0);
  KEYHOLE_CHECK(std::max(width, globals) <= kUnbounded / block,
                "bigbird: ", std::max(width, globals), " blocks of ", block,
                " tokens are too many; accepted: ", kUnbounded, " tokens in all");
  Pattern meaning(make_block_band(block, (width - 1) / 2));
  if (globals > 0) meaning = meaning | global(globals * block);
  if (randoms > 0) meaning = meaning | random(block, randoms, seed);
  return Pattern(
      make_named(say("bigbird(", block, ", ", width, ", ", randoms, ", ", globals, ", ", seed, ")"),
                 meaning.node()));
}

}  // namespace keyhole
