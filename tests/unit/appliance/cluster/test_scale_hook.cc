#include <signal.h>

#include <boost/asio/io_context.hpp>
#include <catch2/catch.hpp>
#include <chrono>
#include <fstream>
#include <iterator>
#include <optional>

#include "appliance/cluster/scale_hook.h"
#include "tests/support/key_folder.h"

namespace pbox::cluster {
namespace {

using Catch::Contains;

// A shell script as an executable file in a folder of its own.
struct Script {
  explicit Script(const std::string& commands) {
    folder.write("hook", "#!/bin/sh\ncd '" + folder.path() + "'\n" + commands, 0755);
  }
  std::string path() const { return folder.path() + "/hook"; }
  std::string read(const std::string& name) const {
    std::ifstream file(folder.path() + "/" + name);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  test::TemporaryFolder folder;
};

// Runs the loop until there are `count` results.
void await(boost::asio::io_context& context, const std::vector<Status>& results, size_t count) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (results.size() < count && std::chrono::steady_clock::now() < end) {
    context.run_one_for(std::chrono::seconds(1));
    context.restart();
  }
  REQUIRE(results.size() == count);
}

}  // namespace

TEST_CASE("the hook gets its line as one argument, and calls run one after the other") {
  const Script script(
      "printf '%s %s\\n' \"$#\" \"$1\" >> lines\nread -r input || echo end >> lines\n");
  boost::asio::io_context context;
  ScaleHook hook(context, script.path());
  std::vector<Status> results;
  const auto note = [&](const Status& status) { results.push_back(status); };
  hook.call(R"({"event": "scale_out", "why": "it's $full"})", note);
  hook.call("second", note);
  await(context, results, 2);
  CHECK(results[0].ok());
  CHECK(results[1].ok());
  CHECK(script.read("lines") ==
        "1 {\"event\": \"scale_out\", \"why\": \"it's $full\"}\nend\n1 second\nend\n");
}

TEST_CASE("a hook that fails or cannot run says so, and the next call is made all the same") {
  const Script script("test \"$1\" = good || exit 3\n");
  boost::asio::io_context context;
  std::vector<Status> results;
  const auto note = [&](const Status& status) { results.push_back(status); };
  ScaleHook hook(context, script.path());
  hook.call("bad", note);
  hook.call("good", note);
  await(context, results, 2);
  REQUIRE_FALSE(results[0].ok());
  CHECK_THAT(results[0].error().message, Contains("status 3"));
  CHECK(results[1].ok());

  results.clear();
  ScaleHook missing(context, script.path() + "-that-is-not-there");
  missing.call("good", note);
  missing.call("good", note);
  await(context, results, 2);
  for (const Status& result : results) {
    REQUIRE_FALSE(result.ok());
    CHECK_THAT(result.error().message, Contains("cannot be run"));
  }
}

TEST_CASE("a hook that still runs ends with the daemon") {
  const Script script("echo $$ > pid\nexec sleep 1000\n");
  boost::asio::io_context context;
  std::optional<ScaleHook> hook(std::in_place, context, script.path());
  bool has_ended = false;
  hook->call("x", [&](const Status&) { has_ended = true; });
  while (script.read("pid").empty()) context.poll();
  const int pid = std::stoi(script.read("pid"));
  REQUIRE(kill(pid, 0) == 0);
  hook.reset();
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (kill(pid, 0) == 0 && std::chrono::steady_clock::now() < end) context.poll();
  CHECK(kill(pid, 0) != 0);
  CHECK_FALSE(has_ended);
}

}  // namespace pbox::cluster
