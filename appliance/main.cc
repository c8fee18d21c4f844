// pboxd: parse, start, run. Everything else is in appliance.cc.
#include <cstdio>

#include "appliance/appliance.h"
#include "base/version.h"
#include "config/parse.h"

int main(int argc, char** argv) {
  using namespace pbox;
  const auto outcome = config::parse(argc, argv);
  for (const auto& error : outcome.errors) std::fprintf(stderr, "pboxd: %s\n", error.c_str());
  if (!outcome.errors.empty()) return 2;
  switch (outcome.action) {
    case config::Action::kHelp: std::printf("%s", config::usage("pboxd").c_str()); return 0;
    case config::Action::kVersion: std::printf("pboxd %s\n", kVersion); return 0;
    case config::Action::kPrint:
      std::printf("%s", config::print(*outcome.config).c_str());
      return 0;
    case config::Action::kCheck: std::printf("configuration ok\n"); return 0;
    case config::Action::kRun: break;
  }
  appliance::Appliance appliance(*outcome.config,
                                 [argc, argv] { return config::parse(argc, argv); });
  if (const auto status = appliance.start(); !status) {
    std::fprintf(stderr, "pboxd: cannot start:\n%s\n", status.error().message.c_str());
    return 1;
  }
  appliance.run();
  return 0;
}
