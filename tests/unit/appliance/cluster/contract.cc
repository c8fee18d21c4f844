#include "tests/unit/appliance/cluster/contract.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <optional>

#include "appliance/cluster/claim.h"

namespace pbox::cluster {
namespace {

Transaction put(const std::string& key, const std::string& value) {
  return {.conditions = {}, .puts = {{key, value, false}}, .deletes = {}};
}

std::string text_of(const std::vector<Event>& events) {
  std::string text;
  for (const Event& event : events) {
    text += (event.deleted ? "-" : "+") + event.entry.key + "=" + event.entry.value + " ";
  }
  return text;
}

}  // namespace

bool Desk::run_until(const std::function<bool()>& done) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  context.restart();
  while (!done()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    context.run_one_for(std::chrono::milliseconds(50));
    context.restart();
  }
  return true;
}

Result<Snapshot> Desk::get(Store& store, const std::string& prefix) {
  std::optional<Result<Snapshot>> answer;
  store.get(prefix, [&](const Result<Snapshot>& result) { answer.emplace(result); });
  CHECK_FALSE(answer.has_value());  // never answered inside the call
  REQUIRE(run_until([&] { return answer.has_value(); }));
  return *answer;
}

Result<Outcome> Desk::commit(Store& store, const Transaction& transaction) {
  std::optional<Result<Outcome>> answer;
  store.commit(transaction, [&](const Result<Outcome>& result) { answer.emplace(result); });
  CHECK_FALSE(answer.has_value());
  REQUIRE(run_until([&] { return answer.has_value(); }));
  return *answer;
}

bool Desk::await_session(Store& store) {
  return run_until([&] { return store.session() != 0 && store.health().up; });
}

void check_transactions(Desk& desk, const StoreFactory& open) {
  const auto store = open(desk, {});
  REQUIRE(desk.await_session(*store));
  const auto first = desk.commit(*store, put("t/a", "1"));
  REQUIRE(first.ok());
  CHECK(first->committed);

  // If two transactions expect the same revision, one of them is committed.
  Transaction change{{{"t/a", first->revision}}, {{"t/a", "2", false}, {"t/b", "3", false}}, {}};
  const auto second = desk.commit(*store, change);
  REQUIRE(second.ok());
  CHECK(second->committed);
  CHECK(second->revision > first->revision);
  const auto late = desk.commit(*store, change);
  REQUIRE(late.ok());
  CHECK_FALSE(late->committed);
  auto snapshot = desk.get(*store, "t/");
  REQUIRE(snapshot.ok());
  CHECK(snapshot->revision == second->revision);
  REQUIRE(snapshot->entries.size() == 2);
  CHECK(snapshot->entries[0].value == "2");
  CHECK(snapshot->entries[0].create_revision == first->revision);
  CHECK(snapshot->entries[0].mod_revision == second->revision);
  CHECK(snapshot->entries[1].key == "t/b");
  CHECK(snapshot->entries[1].create_revision == second->revision);

  // The absence of a key is a condition too, and a deleted key can be created again.
  Transaction make{{{"t/b", 0}}, {{"t/b", "4", false}}, {}};
  CHECK_FALSE(desk.commit(*store, make)->committed);
  CHECK(desk.commit(*store, {{}, {}, {"t/b", "t/none"}})->committed);
  const auto made = desk.commit(*store, make);
  CHECK(made->committed);
  snapshot = desk.get(*store, "t/b");
  REQUIRE(snapshot->entries.size() == 1);
  CHECK(snapshot->entries[0].create_revision == made->revision);

  const auto twice = desk.commit(*store, {{}, {{"t/a", "5", false}}, {"t/a"}});
  REQUIRE_FALSE(twice.ok());
  CHECK(twice.error().code == ErrorCode::kInvalidArgument);
  CHECK_THAT(twice.error().message, Catch::Contains("'t/a' twice"));
  CHECK_FALSE(desk.commit(*store, put("", "5")).ok());
  CHECK(desk.get(*store, "t/a")->entries[0].value == "2");
}

void check_watches(Desk& desk, const StoreFactory& open) {
  const auto store = open(desk, {});
  REQUIRE(desk.await_session(*store));
  const int64_t begin = desk.commit(*store, put("w/a", "1"))->revision;
  std::vector<std::string> seen;
  std::vector<int64_t> revisions;
  const auto note = [&](const std::vector<Event>& events) {
    seen.push_back(text_of(events));
    revisions.push_back(events.back().entry.mod_revision);
  };
  auto watch = store->watch("w/", begin, {.on_events = note, .on_compacted = [] { FAIL(); }});
  REQUIRE(desk.commit(*store, {{}, {{"w/b", "2", false}, {"w/c", "3", false}}, {}}).ok());
  REQUIRE(desk.commit(*store, put("other", "4")).ok());
  REQUIRE(desk.commit(*store, {{}, {{"w/c", "5", false}}, {"w/a"}}).ok());
  REQUIRE(desk.run_until([&] { return seen.size() == 3; }));
  CHECK(seen == std::vector<std::string>{"+w/a=1 ", "+w/b=2 +w/c=3 ", "+w/c=5 -w/a= "});
  CHECK(std::is_sorted(revisions.begin(), revisions.end()));

  // A second watch resumes where the first one ended, and the first one delivers nothing more.
  watch.reset();
  REQUIRE(desk.commit(*store, put("w/d", "6")).ok());
  std::string resumed;
  watch = store->watch("w/", revisions.back() + 1,
                       {.on_events = [&](const auto& events) { resumed += text_of(events); },
                        .on_compacted = [] { FAIL(); }});
  REQUIRE(desk.run_until([&] { return !resumed.empty(); }));
  CHECK(resumed == "+w/d=6 ");
  CHECK(seen.size() == 3);
}

void check_sessions(Desk& desk, const StoreFactory& open) {
  std::vector<int64_t> sessions;
  {
    const auto store = open(desk, {.on_session = [&](int64_t id) { sessions.push_back(id); }});
    REQUIRE(desk.run_until([&] { return !sessions.empty(); }));
    CHECK(store->session() == sessions.back());
    REQUIRE(desk.commit(*store, {{}, {{"s/a", "1", true}, {"s/b", "2", false}}, {}}).ok());
    const auto snapshot = desk.get(*store, "s/");
    REQUIRE(snapshot->entries.size() == 2);
    CHECK(snapshot->entries[0].session == store->session());
    CHECK(snapshot->entries[1].session == 0);
  }
  const auto next = open(desk, {});
  REQUIRE(desk.await_session(*next));
  const auto snapshot = desk.get(*next, "s/");
  REQUIRE(snapshot->entries.size() == 1);
  CHECK(snapshot->entries[0].key == "s/b");
}

void check_claims(Desk& desk, const StoreFactory& open) {
  int64_t old_token = 0;
  Condition old_fence;
  {
    const auto store = open(desk, {});
    REQUIRE(desk.await_session(*store));
    int changes = 0;
    Claim claim(
        desk.context, *store, "c/lead", [] { return "first"; }, [&] { ++changes; });
    REQUIRE(desk.run_until([&] { return claim.held(); }));
    CHECK(changes >= 1);
    CHECK(claim.holder()->value == "first");
    Claim second(
        desk.context, *store, "c/other", [] { return "x"; }, [] {});
    REQUIRE(desk.run_until([&] { return second.held(); }));
    old_token = claim.token();
    old_fence = claim.fence();
    CHECK(desk.commit(*store, {{old_fence}, {{"c/work", "by first", false}}, {}})->committed);
  }
  const auto store = open(desk, {});
  REQUIRE(desk.await_session(*store));
  std::string value = "second";
  Claim claim(
      desk.context, *store, "c/lead", [&] { return value; }, [] {});
  REQUIRE(desk.run_until([&] { return claim.held(); }));
  CHECK(claim.token() > old_token);
  // Writes that the first holder still sends come too late.
  CHECK_FALSE(desk.commit(*store, {{old_fence}, {{"c/work", "late", false}}, {}})->committed);
  CHECK(desk.commit(*store, {{claim.fence()}, {{"c/work", "by second", false}}, {}})->committed);
  CHECK(desk.get(*store, "c/work")->entries[0].value == "by second");
  // The holder may change the value, and holds the key with it.
  const int64_t former_token = claim.token();
  value = "third";
  claim.refresh();
  REQUIRE(desk.run_until([&] { return claim.token() != former_token; }));
  CHECK(claim.held());
  CHECK(claim.holder()->value == "third");
  CHECK(desk.get(*store, "c/lead")->entries[0].session == store->session());
  CHECK(desk.commit(*store, {{claim.fence()}, {{"c/work", "by third", false}}, {}})->committed);
  // A key that another party deletes is claimed again, under a new token.
  const int64_t token = claim.token();
  REQUIRE(desk.commit(*store, {{}, {}, {"c/lead"}})->committed);
  REQUIRE(desk.run_until([&] { return claim.held() && claim.token() != token; }));
  CHECK(claim.token() > token);
}

}  // namespace pbox::cluster
