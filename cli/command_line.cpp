// cli/command_line.cpp
// Finds the verb in the table, lets CLI11 read its options, runs it, and turns
// whatever was thrown into one `error:` text and an exit code. Nothing below exits.
#include "cli/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <vector>

#include "base/check.h"
#include "cli/options.h"

namespace keyhole::cli {
namespace {

struct Verb {
  std::string_view name;
  const char* summary;                             // one line, shown by `keyhole` alone
  Runner (*add)(CLI::App& app, Context& context);  // app: the subcommand of this verb
};
constexpr Verb kVerbs[] = {
    {"info", "what was found on this machine, and the list of patterns", add_info},
    {"show", "a picture of a pattern: text, SVG, PNG or a web page", add_show},
    {"plan", "what a pattern costs; save, load and compare plans", add_plan},
    {"run", "attention over .npy files", add_run},
    {"check", "every kernel against the fp64 reference, on hostile inputs", add_check},
    {"bench", "time patterns against dense attention", add_bench},
    {"demo", "a tour of all this in under ten seconds", add_demo},
};

std::string short_help() {
  std::string text = fmt::format(
      "keyhole {}: attention only where it matters\n\nusage: keyhole VERB [options]\n\n",
      version());
  for (const Verb& verb : kVerbs) text += fmt::format("  {:<7} {}\n", verb.name, verb.summary);
  return text +
         "\n  keyhole show \"causal & (window(2) | sinks(1))\" --len 8\n"
         "  keyhole VERB --help      options and examples of one verb\n";
}

[[noreturn]] void refuse_verb(const std::string& name) {
  KEYHOLE_CHECK(!name.starts_with('-'), "unknown option \"", name,
                "\"; options of a verb come after it, and see keyhole --help");
  std::vector<std::string> names;
  for (const Verb& verb : kVerbs) names.emplace_back(verb.name);
  names.push_back("help");
  throw Error(ErrorKind::usage, say("unknown verb \"", name, "\"; ", nearest_or_all(name, names)));
}

// CLI11's own sentences name the option; what it does not know is what the user meant.
std::string explain_parse_error(std::string_view verb, const CLI::App& app,
                                const CLI::ParseError& error) {
  const auto chosen = app.get_subcommands();
  const std::string part = chosen.empty() ? "" : " " + chosen.front()->get_name();
  const std::string hint = say("; see keyhole ", verb, part, " --help");
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr) {
    const std::string text = error.what();  // "--len: 1 required N missing"
    return say(verb, ": ", text.substr(0, text.find(':')), " needs a value", hint);
  }
  const std::vector<std::string> extras = app.remaining(/*recurse=*/true);
  if (dynamic_cast<const CLI::ExtrasError*>(&error) == nullptr || extras.empty()) {
    std::string text = error.what();
    std::replace(text.begin(), text.end(), '\n', ' ');
    return say(verb, ": ", text, hint);
  }
  const auto unknown = std::find_if(extras.begin(), extras.end(),
                                    [](const std::string& word) { return word.starts_with("-"); });
  if (unknown == extras.end()) {
    std::vector<std::string> tables;  // of bench
    for (const CLI::App* table : app.get_subcommands({})) tables.push_back(table->get_name());
    if (!tables.empty()) {
      return say(verb, ": unknown table \"", extras.front(), "\"; ",
                 nearest_or_all(extras.front(), tables));
    }
    return say(verb, ": \"", extras.front(),
               "\" was not expected; a pattern with blanks in it needs quotes", hint);
  }
  const std::string option = unknown->substr(0, unknown->find('='));
  std::vector<std::string> names;
  std::vector<const CLI::App*> parts = {&app};
  parts.insert(parts.end(), chosen.begin(), chosen.end());
  for (const CLI::App* asked : parts) {
    for (const CLI::Option* known : asked->get_options()) {
      for (const std::string& name : known->get_lnames()) names.push_back(name);
    }
  }
  const std::string meant = nearest(option.substr(option.find_first_not_of('-')), names);
  return say(verb, ": unknown option \"", option, "\"",
             meant.empty() ? hint : say("; did you mean \"--", meant, "\"?"));
}

// `--png ""`, most often a shell variable that was not set. No option means anything by it.
void refuse_empty_values(std::string_view verb, const CLI::App& app) {
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_positional() || option->get_expected_max() == 0) continue;
    for (const std::string& value : option->results()) {
      const std::string name = option->get_name(), type = option->get_type_name();
      KEYHOLE_CHECK(!value.empty(), verb, ": ", name, " is \"\"; pass a ",
                    type == "TEXT" ? "value" : type, ", or leave ", name, " out");
    }
  }
  for (const CLI::App* part : app.get_subcommands()) refuse_empty_values(verb, *part);
}

int run_verb(const Verb& verb, std::vector<std::string> words) {
  CLI::App app(verb.summary, say("keyhole ", verb.name));
  app.get_formatter()->column_width(32);
  app.get_formatter()->label("OPTIONS", "options");
  Context context;
  const Runner runner = verb.add(app, context);
  std::reverse(words.begin(), words.end());  // CLI11 takes a vector from its end
  try {
    app.parse(words);
  } catch (const CLI::CallForHelp&) {
    write_out(app.help());
    return kDone;
  } catch (const CLI::ParseError& error) {
    throw Error(ErrorKind::usage, explain_parse_error(verb.name, app, error));
  }
  refuse_empty_values(verb.name, app);
  return runner();
}

int run(std::vector<std::string> words) {
  // `keyhole help show` is `keyhole show --help`.
  if (words.size() == 2 && words[0] == "help") words = {words[1], "--help"};
  if (words.empty() || words[0] == "help" || words[0] == "--help" || words[0] == "-h") {
    write_out(short_help());
    return kDone;
  }
  if (words[0] == "--version" || words[0] == "-V") {
    print("keyhole {}\n", version());
    return kDone;
  }
  const Verb* verb = std::ranges::find(kVerbs, words[0], &Verb::name);
  if (verb == std::end(kVerbs)) refuse_verb(words[0]);
  return run_verb(*verb, {words.begin() + 1, words.end()});
}

// An internal error is a check of ours that failed: 1. All the others are for the user to mend: 2.
int report(const char* text, int exit_code) {
  std::fflush(stdout);
  fmt::print(stderr, "error: {}\n", text);
  return exit_code;
}

}  // namespace

int run_command_line(std::vector<std::string> words) {
  try {
    const int exit_code = run(std::move(words));
    finish_output();
    return exit_code;
  } catch (const Error& error) {
    return report(error.what(), error.kind() == ErrorKind::internal ? kCheckFailed : kUsageError);
  } catch (const std::bad_alloc&) {
    return report("out of memory; try a shorter length", kUsageError);
  } catch (const std::exception& error) {
    return report(say("internal error: ", error.what()).c_str(), kCheckFailed);
  }
}

}  // namespace keyhole::cli
