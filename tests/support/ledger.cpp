// tests/support/ledger.cpp
// Writes ledger lines.
#include "support/ledger.h"

#include <ctime>
#include <filesystem>
#include <fstream>
#include <iomanip>
#include <sstream>

#include "base/check.h"

#ifndef KEYHOLE_SOURCE_DIR
#define KEYHOLE_SOURCE_DIR "."
#endif

namespace keyhole::test {

std::string source_commit() {
  const std::filesystem::path git = std::filesystem::path(KEYHOLE_SOURCE_DIR) / ".git";
  std::ifstream head(git / "HEAD");
  std::string word, name;
  if (!(head >> word)) return "unknown";
  if (word != "ref:") return word.substr(0, 12);
  head >> name;
  std::ifstream branch(git / name);
  return branch >> word ? word.substr(0, 12) : "unknown";
}

std::string to_text(const LedgerLine& line) {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  std::ostringstream text;
  text << std::put_time(&utc, "%Y-%m-%dT%H:%M:%SZ") << " commit=" << source_commit()
       << " seeds=" << line.first_seed << "+" << std::max(line.cases, line.plans)
       << " cases=" << line.cases << " plans=" << line.plans << " kernel_runs=" << line.kernel_runs
       << " pairs=" << line.pairs << " failures=" << line.failures;
  if (line.skipped != 0) text << " skipped=" << line.skipped;
  if (line.refused != 0) text << " refused=" << line.refused;
  text << std::fixed << std::setprecision(2) << " worst=" << line.worst << std::setprecision(1)
       << " seconds=" << line.seconds;
  return text.str();
}

void append_to_ledger(const std::string& path, const LedgerLine& line) {
  const auto folder = std::filesystem::path(path).parent_path();
  if (!folder.empty()) std::filesystem::create_directories(folder);
  std::ofstream ledger(path, std::ios::app);
  ledger << to_text(line) << '\n';
  ledger.flush();
  KEYHOLE_CHECK(ledger.good(), "ledger: cannot write ", path);
}

}  // namespace keyhole::test
