// cli/bench/break_even.cpp
// The break-even table: from which length on does a pattern beat dense attention of the same shape?
// Doubles the length until it does, then halves the interval. Both are timed in turns at every
// step, and winning means by three per cent at least: less than that is the weather.
#include <fmt/format.h>

#include <map>

#include "cli/bench/patterns.h"
#include "cli/bench/session.h"

namespace keyhole::bench {
namespace {

constexpr double kClearWin = 1.03;
constexpr double kDoubtful = 1.2;  // a smaller win is measured again, and the worse result stands

// One length: how much faster than dense, and what is kept.
struct Step {
  double speedup = 0, kept_share = 0;
  nlohmann::json record;

  // What keeps every pair is dense attention, however the clock saw it.
  bool is_win() const { return speedup >= kClearWin && kept_share < 1; }
};

// How one contender makes its case for a length.
struct Contender {
  std::string name;
  std::string text;
  std::function<std::optional<Case>(int64_t length)> make;
};

class Search {
 public:
  Search(Session& session, const Contender& contender, int64_t first, int64_t last)
      : session_(session), contender_(contender), first_(first), last_(last) {}

  // The shortest winning length, or nothing. Also measures the first and the last length.
  std::optional<int64_t> run();
  const Step* at(int64_t length) const {
    const auto found = steps_.find(length);
    return found == steps_.end() ? nullptr : &found->second;
  }

 private:
  bool wins(int64_t length);  // false too where a check failed or the pattern cannot be had

  Session& session_;
  const Contender& contender_;
  int64_t first_, last_;
  std::map<int64_t, Step> steps_;
};

bool Search::wins(int64_t length) {
  if (const Step* known = at(length)) return known->is_win();
  const std::optional<Case> c = contender_.make(length);
  if (!c) return false;
  std::shared_ptr<Inputs> inputs;
  const auto baseline = session_.prepare(dense_twin(*c), inputs);
  const auto subject = session_.prepare(*c, inputs);
  if (!baseline || !subject) return false;
  TimingEffort effort = session_.effort().timing;
  effort.min_runs = std::max(effort.min_runs, 7);  // a verdict, not only a number
  const auto race = [&] { return time_in_turns({baseline->call(), subject->call()}, effort); };
  const auto ratio = [](const std::vector<Timing>& timings) {
    return timings[0].median_ms / timings[1].median_ms;
  };
  auto timings = race();
  if (ratio(timings) >= kClearWin && ratio(timings) < kDoubtful) {
    auto again = race();
    if (ratio(again) < ratio(timings)) timings = std::move(again);
  }
  Step& step = steps_[length];
  step.record = to_json(*subject, timings[1]);
  add_dense(step.record, dense_twin_of(*baseline, timings[0]));
  step.speedup = ratio(timings);
  step.kept_share = double(subject->report().pairs) / double(baseline->report().pairs);
  return step.is_win();
}

std::optional<int64_t> Search::run() {
  int64_t losing = 0, winning = 0;
  for (const int64_t length : doubling({first_, last_})) {
    // Winning once may be luck; the next length must agree.
    if (wins(length) && (length == last_ || wins(std::min(2 * length, last_)))) {
      winning = length;
      break;
    }
    losing = length;
  }
  wins(last_);
  if (winning == 0) return std::nullopt;
  // To an eighth: finer than that is finer than the timing.
  while (losing > 0 && winning - losing > std::max<int64_t>(1, winning / 8)) {
    const int64_t middle = (losing + winning) / 2;
    (wins(middle) ? winning : losing) = middle;
  }
  return winning;
}

std::vector<Contender> contenders(const Session& session, const Range& range) {
  const auto made = [&session, range](const std::string& name, const Pattern& pattern,
                                      const std::string& text, int64_t length) {
    return range.at(session, fmt::format("break-even-{}-{}", name, length), pattern, text, length);
  };
  std::vector<Contender> all;
  for (const CatalogEntry& entry : catalog()) {
    if (entry.name == "dense" || entry.name == "causal") continue;
    const std::string name(entry.name);
    const auto sized = sized_pattern(entry, range.lengths.first, range.heads);
    if (!sized) continue;
    all.push_back(
        {name, sized->text, [&entry, made, name, range](int64_t length) -> std::optional<Case> {
           const auto at_length = sized_pattern(entry, length, range.heads);
           if (!at_length) return std::nullopt;
           return made(name, at_length->pattern, at_length->text, length);
         }});
  }
  all.push_back({"draft-tree", fmt::format("draft tree of {} nodes", kDraftNodes),
                 [made](int64_t context) -> std::optional<Case> {
                   Case c = made("draft-tree", draft_tree(context),
                                 fmt::format("draft tree, {} nodes after {}", kDraftNodes, context),
                                 context + kDraftNodes);
                   c.q_len = kDraftNodes;
                   return c;
                 }});
  return all;
}

}  // namespace

void bench_break_even(Session& session) {
  // A GPU has work for a hundred thousand threads before length matters.
  const bool is_quick = session.options().is_quick;
  const int64_t usual_last =
      session.is_on_gpu() ? (is_quick ? 16384 : 131072) : (is_quick ? 1024 : 4096);
  const Range range(session, {16, usual_last}, 2);
  const auto [first_len, last_len] = range.lengths;
  const std::string first = cli::with_thousands(first_len), last = cli::with_thousands(last_len);
  cli::Table table(
      {"pattern", "beats dense from", "there", "keeps there", "at " + first, "at " + last},
      "lrrrrr");
  const auto all = contenders(session, range);
  {
    cli::Progress progress("bench break-even", int64_t(all.size()));
    for (const Contender& contender : all) {
      progress.step(contender.text);
      Search search(session, contender, first_len, last_len);
      const auto found = search.run();
      const auto speedup_at = [&](int64_t length) {
        const Step* step = search.at(length);
        return step ? speedup_text(step->speedup) : std::string("-");
      };
      const int64_t shown = found.value_or(last_len);
      const Step* step = search.at(shown);
      if (!step) {  // not to be had at this length, or its check failed
        table.add({contender.text, "not measured", "", "", speedup_at(first_len), ""},
                  cli::Ink::dim);
        continue;
      }
      table.add({step->record["pattern"].get<std::string>(),
                 found ? cli::with_thousands(*found) : "never up to " + last,
                 found ? speedup_text(step->speedup) : "", cli::percent(step->kept_share),
                 speedup_at(first_len), speedup_at(last_len)});
      nlohmann::json record = step->record;
      record["name"] = contender.name;
      record["break_even"] = found ? nlohmann::json(*found) : nlohmann::json(nullptr);
      record["kept_of_dense"] = step->kept_share;
      for (const int64_t end : {first_len, last_len}) {
        if (const Step* other = search.at(end)) {
          record[end == first_len ? "speedup_at_first" : "speedup_at_last"] = other->speedup;
        }
      }
      record["first_len"] = first_len;
      record["last_len"] = last_len;
      session.keep("break-even", std::move(record));
    }
  }
  session.print(fmt::format(
      "\nbreak-even: the shortest length, from {} on, at which a pattern is 3% faster than dense "
      "of the same\nshape (causal where the pattern is causal), {}, {}. For the draft tree the "
      "length is the\ncontext before it, and the queries are its {} nodes.\n",
      first, range.heads_text(), session.conditions(range.dtype), kDraftNodes));
  session.print(table);
}

}  // namespace keyhole::bench
