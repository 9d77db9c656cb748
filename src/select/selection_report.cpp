// src/select/selection_report.cpp
// The report on a selection as text and as JSON.
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/amounts.h"
#include "base/check.h"
#include "keyhole/selection_cost.h"

namespace keyhole {
namespace {

// "4.7x"; below 1 with two digits, so that 0.97x does not become 1.0x.
std::string factor(double speedup) {
  char text[32];
  std::snprintf(text, sizeof text, speedup < 1.05 ? "%.2fx" : "%.1fx", speedup);
  return text;
}

// Three digits: more would promise what arithmetic cannot keep.
int64_t rounded(int64_t length) {
  int64_t step = 1;
  while (length / step >= 1000) step *= 10;
  return (length + step / 2) / step * step;
}

std::string rate_text(double per_second, const char* unit) {
  char text[64];
  std::snprintf(text, sizeof text, "%.4g %s", per_second / 1e12, unit);
  return text;
}

std::string step_text(const SelectionStep& step, const std::string& what) {
  std::string text = in_units(step.flops, "FLOP") + what;
  if (step.gathered_bytes > 0) text += ", " + in_units(step.gathered_bytes, "B") + " gathered";
  return text + ": " + in_seconds(step.seconds);
}

std::string indexer_text(const SelectionReport& report) {
  const SelectionCall& call = report.call;
  std::string text =
      step_text(report.indexer, say(", ", call.index_heads, " heads of ", call.index_dim, " in ",
                                    to_string(call.index_dtype)));
  if (call.shared_by > 1) {
    text += say(", shared by ", call.shared_by,
                " layers: ", in_seconds(report.indexer.seconds / double(call.shared_by)), " each");
  }
  return text;
}

std::string dense_text(const SelectionReport& report) {
  const char* const form = report.call.latent_dim == 0 ? ""
                           : report.is_dense_latent    ? ", in latent form"
                                                       : ", in the form per head";
  return step_text(report.dense, form);
}

std::string verdict(const SelectionReport& report) {
  const std::string choosing = in_seconds(report.choosing_seconds);
  const std::string dense = in_seconds(report.dense.seconds);
  // No kernel reaches its rate, and none misses it by the same share: less says nothing.
  constexpr double kClose = 1.25;
  const bool is_close = report.speedup < kClose && report.speedup > 1 / kClose;
  return factor(report.speedup) +
         (report.speedup > 1
              ? ": choosing is faster here, " + choosing + " against " + dense
              : ": dense attention is faster here, " + dense + " against " + choosing) +
         (is_close ? "; so close that both should be measured" : "");
}

std::string pays_text(const SelectionReport& report, const std::optional<int64_t>& wins_from) {
  if (!wins_from) return "at no length";
  const int64_t length = rounded(*wins_from);
  if (!report.is_causal) {
    return say("where a query sees about ", length, " keys or more");
  }
  return report.call.q_len == report.call.k_len ? say("from a text of about ", length, " tokens on")
                                                : say("from about ", length, " keys on");
}

nlohmann::ordered_json json_of(const SelectionStep& step) {
  return {{"flops", step.flops},
          {"memory_bytes", step.memory_bytes},
          {"gathered_bytes", step.gathered_bytes},
          {"seconds", step.seconds}};
}

nlohmann::ordered_json json_of(const std::optional<int64_t>& number) {
  return number ? nlohmann::ordered_json(*number) : nlohmann::ordered_json(nullptr);
}

}  // namespace

std::string SelectionReport::text() const {
  std::string text;
  const auto line = [&text](const char* name, const std::string& value) {
    text += report_line(name, value);
  };
  line("visible", say(visible_pairs, " of ", all_pairs, " pairs (",
                      percent_of(double(visible_pairs), double(all_pairs)), "), ", pattern));
  line("chosen",
       say(chosen_pairs, " of these (", percent_of(double(chosen_pairs), double(visible_pairs)),
           "), at most ", call.k, " per query"));
  if (speedup == 0) {
    line("speed-up", "none, there is nothing to compute");
    return text;
  }
  if (call.index_heads > 0) line("indexer", indexer_text(*this));
  line("attention", step_text(chosen, " over the chosen pairs"));
  line("dense", dense_text(*this));
  line("speed-up", verdict(*this));
  line("pays", pays_text(*this, wins_from));
  for (const SelectionChange& change : changes) {
    line("with", change.what + ": " + factor(change.speedup) + " here; pays " +
                     pays_text(*this, change.wins_from));
  }
  line("assumed", rate_text(rates.flops_16bit, "TFLOP/s in 16 bits, ") +
                      rate_text(rates.flops_8bit, "in 8 bits; ") +
                      rate_text(rates.memory, "TB/s from memory, ") +
                      rate_text(rates.gathered, "gathered out of the cache."));
  line("",
       "Least times, not measured; finding the best scores, projections and launches are not "
       "counted");
  return text;
}

std::string SelectionReport::json() const {
  nlohmann::ordered_json json;
  json["pattern"] = pattern;
  json["is_causal"] = is_causal;
  json["call"] = {{"batch", call.batch},
                  {"q_len", call.q_len},
                  {"k_len", call.k_len},
                  {"k", call.k},
                  {"q_heads", call.q_heads},
                  {"kv_heads", call.kv_heads},
                  {"head_dim", call.head_dim},
                  {"v_head_dim", call.v_head_dim},
                  {"latent_dim", call.latent_dim},
                  {"rope_head_dim", call.rope_head_dim},
                  {"dtype", to_string(call.dtype)},
                  {"index_heads", call.index_heads},
                  {"index_dim", call.index_dim},
                  {"index_dtype", to_string(call.index_dtype)},
                  {"groups", call.groups},
                  {"shared_by", call.shared_by}};
  json["rates"] = {{"flops_16bit", rates.flops_16bit},
                   {"flops_8bit", rates.flops_8bit},
                   {"memory", rates.memory},
                   {"gathered", rates.gathered}};
  json["all_pairs"] = all_pairs;
  json["visible_pairs"] = visible_pairs;
  json["chosen_pairs"] = chosen_pairs;
  json["indexer"] = json_of(indexer);
  json["chosen"] = json_of(chosen);
  json["dense"] = json_of(dense);
  json["is_dense_latent"] = is_dense_latent;
  json["choosing_seconds"] = choosing_seconds;
  json["speedup"] = speedup;
  json["wins_from"] = json_of(wins_from);
  json["changes"] = nlohmann::ordered_json::array();
  for (const SelectionChange& change : changes) {
    json["changes"].push_back({{"what", change.what},
                               {"speedup", change.speedup},
                               {"wins_from", json_of(change.wins_from)}});
  }
  return json.dump(2) + "\n";
}

}  // namespace keyhole
