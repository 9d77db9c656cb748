// cli/verbs.h
// The table of verbs. A verb is one file: it declares its options on a CLI11 subcommand and returns
// the function that runs it. A new verb is a new file and one row in command_line.cpp.
#pragma once

#include <functional>

#include "cli/common.h"

namespace CLI {
class App;
}

namespace keyhole::cli {

// Runs after all options have been read; returns the exit code: kDone or kCheckFailed. Mistakes of
// the user are thrown as keyhole::Error and become exit code 2 in command_line.cpp.
using Runner = std::function<int()>;

struct Verb {
  const char* name;
  const char* summary;                             // one line, shown by `keyhole` alone
  Runner (*add)(CLI::App& app, Context& context);  // app: the subcommand of this verb
};

Runner add_info(CLI::App& app, Context& context);
Runner add_show(CLI::App& app, Context& context);
Runner add_plan(CLI::App& app, Context& context);
Runner add_run(CLI::App& app, Context& context);
Runner add_check(CLI::App& app, Context& context);
Runner add_bench(CLI::App& app, Context& context);
Runner add_demo(CLI::App& app, Context& context);

}  // namespace keyhole::cli
