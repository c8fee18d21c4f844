#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "appliance/audit/audit_log.h"
#include "base/clock.h"
#include "tests/support/key_folder.h"

namespace pbox::audit {
namespace {

using Catch::Contains;
using Json = nlohmann::json;
using test::TemporaryFolder;

// A log in a folder of its own, and what it has reported about its state.
class Desk {
 public:
  Desk() : path(folder.path() + "/audit.log") { open(); }

  void open() {
    auto opened = AuditLog::open(path, [this](bool is_lost, const std::string& text) {
      states.push_back((is_lost ? "lost: " : "back: ") + text);
    });
    REQUIRE(opened.ok());
    log = std::move(*opened);
  }
  // Writes one event of the kind, at `now_ns`.
  void write(Kind kind, const std::string& reason = "") {
    log->write({.kind = kind, .reason = reason}, now_ns);
  }
  static std::vector<Json> lines(const std::string& file) {
    std::ifstream text(file);
    std::vector<Json> parsed;
    for (std::string line; std::getline(text, line);) parsed.push_back(Json::parse(line));
    return parsed;
  }
  std::vector<Json> lines() const { return lines(path); }

  TemporaryFolder folder;
  std::string path;
  std::vector<std::string> states;
  uint64_t now_ns = 100 * kNanosPerSecond;
  std::unique_ptr<AuditLog> log;
};

TEST_CASE("a record is one line of JSON with what is known, and no more") {
  CHECK(to_line({.kind = Kind::kJoin,
                 .who = "pbox://rack/tenant/acme/job/*/rank/*",
                 .address = "10.0.0.5:4711",
                 .job = "acme/resnet",
                 .part = 0,
                 .rank = 3},
                1'764'064'800'007, 0, 0) ==
        R"({"time":"2025-11-25T10:00:00.007Z","event":"join",)"
        R"("who":"pbox://rack/tenant/acme/job/*/rank/*","address":"10.0.0.5:4711",)"
        R"("job":"acme/resnet","part":0,"rank":3})");
  CHECK(to_line({.kind = Kind::kHandshakeRefused, .reason = "why"}, 0, 5, 6) ==
        R"({"time":"1970-01-01T00:00:00.000Z","event":"handshake_refused","reason":"why",)"
        R"("suppressed":5,"lost":6})");
}

TEST_CASE("every kind has a name and a bound, tighter where strangers cause it") {
  std::set<std::string> names;
  for (size_t index = 0; index < kKindCount; ++index) {
    const Kind kind = static_cast<Kind>(index);
    CHECK(names.insert(to_string(kind)).second);
    const std::string name = to_string(kind);
    const bool is_refusal = name.ends_with("refused") || name.ends_with("denied");
    CHECK((bound_of(kind).per_second == 1) == is_refusal);
    CHECK(bound_of(kind).burst >= 100);
  }
}

TEST_CASE("texts of strangers are cut, and cannot forge a line or break the JSON") {
  Desk desk;
  desk.write(Kind::kMessageDenied, "a\n{\"event\":\"join\"}\x01\xff\"" + std::string(5'000, 'x'));
  const auto lines = desk.lines();
  REQUIRE(lines.size() == 1);
  CHECK(lines[0]["event"] == "message_denied");
  CHECK(lines[0]["reason"].get<std::string>().size() < 600);
  CHECK(std::filesystem::file_size(desk.path) < 1'000);
}

TEST_CASE("a flood of refusals is bounded, counted, and displaces nothing that was allowed") {
  Desk desk;
  for (int index = 0; index < 100'000; ++index) desk.write(Kind::kHandshakeRefused);
  for (int index = 0; index < 5'000; ++index) desk.write(Kind::kJoin);
  for (int index = 0; index < 20; ++index) desk.write(Kind::kAdmin);
  CHECK(desk.lines().size() == 100 + 5'000 + 20);

  // Three seconds later three more may be written; the first says what was left out.
  desk.now_ns += 3 * kNanosPerSecond;
  for (int index = 0; index < 10; ++index) desk.write(Kind::kHandshakeRefused);
  auto lines = desk.lines();
  REQUIRE(lines.size() == 5'120 + 3);
  CHECK(lines[5'120]["suppressed"] == 100'000 - 100);
  CHECK_FALSE(lines[5'121].contains("suppressed"));

  // Without further refusals, a separate line says after a while what was left out.
  desk.log->on_second(desk.now_ns + 5 * kNanosPerSecond);
  CHECK(desk.lines().size() == 5'123);
  desk.log->on_second(desk.now_ns + 10 * kNanosPerSecond);
  desk.log->on_second(desk.now_ns + 20 * kNanosPerSecond);
  lines = desk.lines();
  REQUIRE(lines.size() == 5'124);
  CHECK(lines.back()["event"] == "handshake_refused");
  CHECK(lines.back()["suppressed"] == 7);
  CHECK(desk.log->lost() == 0);
}

TEST_CASE("a log that ends says what it has left out") {
  Desk desk;
  for (int index = 0; index < 103; ++index) desk.write(Kind::kJoinRefused);
  desk.log.reset();
  const auto lines = desk.lines();
  REQUIRE(lines.size() == 101);
  CHECK(lines.back()["suppressed"] == 3);
}

TEST_CASE("the file is its owner's, is appended to, and is opened again after it was renamed") {
  Desk desk;
  struct stat found {};
  REQUIRE(stat(desk.path.c_str(), &found) == 0);
  CHECK((found.st_mode & 0777) == 0600);
  desk.write(Kind::kJoin);
  desk.log.reset();
  desk.open();
  desk.write(Kind::kCut);
  CHECK(desk.lines().size() == 2);
  const std::string old = desk.path + ".1";
  std::filesystem::rename(desk.path, old);
  desk.write(Kind::kState);
  desk.log->reopen();
  desk.write(Kind::kDrain);
  CHECK(Desk::lines(old).size() == 3);
  REQUIRE(desk.lines().size() == 1);
  CHECK(desk.lines()[0]["event"] == "drain");
  CHECK(desk.states.empty());
}

TEST_CASE("half a line that a crash has left does not spoil the next one") {
  Desk desk;
  desk.log.reset();
  desk.folder.write("audit.log", "{\"half");
  desk.open();
  desk.write(Kind::kJoin);
  std::ifstream text(desk.path);
  std::string half, whole;
  REQUIRE((std::getline(text, half) && std::getline(text, whole)));
  CHECK(half == "{\"half");
  CHECK(Json::parse(whole)["event"] == "join");
}

TEST_CASE("a deleted file is made anew, and while its folder is gone lines are lost and counted") {
  Desk desk;
  const std::string inner = desk.folder.path() + "/inner";
  std::filesystem::create_directory(inner);
  desk.path = inner + "/audit.log";
  desk.open();
  desk.write(Kind::kJoin);
  std::filesystem::remove(desk.path);
  desk.log->on_second(desk.now_ns);
  desk.write(Kind::kCut);
  REQUIRE(desk.lines().size() == 1);
  CHECK(desk.lines()[0]["event"] == "cut");

  std::filesystem::remove_all(inner);
  desk.log->on_second(desk.now_ns);
  for (int index = 0; index < 3; ++index) desk.write(Kind::kJoin);
  CHECK(desk.log->lost() == 3);
  REQUIRE(desk.states.size() == 1);
  CHECK_THAT(desk.states[0], Contains("lost: ") && Contains(desk.path));

  std::filesystem::create_directory(inner);
  desk.log->on_second(desk.now_ns);
  desk.write(Kind::kState);
  REQUIRE(desk.lines().size() == 1);
  CHECK(desk.lines()[0]["lost"] == 3);
  REQUIRE(desk.states.size() == 2);
  CHECK_THAT(desk.states[1], Contains("back: ") && Contains("3 lines were lost"));
}

TEST_CASE("a full disk loses lines and says so, and the log goes on when there is room") {
  Desk desk;
  desk.write(Kind::kJoin);
  const auto bytes = std::filesystem::file_size(desk.path);
  // With this limit the kernel lets the file grow by 10 bytes only: writes fail within a line.
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit former{};
  REQUIRE(getrlimit(RLIMIT_FSIZE, &former) == 0);
  const rlimit tight{.rlim_cur = bytes + 10, .rlim_max = former.rlim_max};
  REQUIRE(setrlimit(RLIMIT_FSIZE, &tight) == 0);
  desk.write(Kind::kCut);
  desk.write(Kind::kCut);
  REQUIRE(setrlimit(RLIMIT_FSIZE, &former) == 0);
  CHECK(desk.log->lost() == 2);
  REQUIRE(desk.states.size() == 1);
  desk.write(Kind::kState);
  std::ifstream text(desk.path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  REQUIRE(lines.size() == 3);
  CHECK(lines[1].size() == 10);
  CHECK(Json::parse(lines[2])["event"] == "state");
  CHECK(Json::parse(lines[2])["lost"] == 2);
}

TEST_CASE("a target that is no file of the box's own is refused, with the remedy") {
  const TemporaryFolder folder;
  const auto error_of = [&](const std::string& name) {
    const auto opened = AuditLog::open(folder.path() + "/" + name, [](bool, const auto&) {});
    return opened ? "" : opened.error().message;
  };
  CHECK_THAT(error_of("none/audit.log"), Contains("log.audit = ") && Contains("a folder that"));
  folder.write("open", "", 0666);
  CHECK_THAT(error_of("open"), Contains("chmod 600"));
  std::filesystem::create_symlink(folder.path() + "/target", folder.path() + "/link");
  CHECK_FALSE(error_of("link").empty());
  CHECK_FALSE(std::filesystem::exists(folder.path() + "/target"));
  REQUIRE(mkfifo((folder.path() + "/pipe").c_str(), 0600) == 0);
  CHECK_THAT(error_of("pipe"), Contains("not a regular file"));
}

}  // namespace
}  // namespace pbox::audit
