#include <catch2/catch.hpp>
#include <set>

#include "appliance/admin/rights.h"
#include "appliance/admin/routes.h"
#include "tests/unit/appliance/admin/fake_source.h"

namespace pbox::admin {
namespace {

using Catch::Contains;

Principal client(tls::Role role) {
  return {.name = std::string("pbox://rack/") + tls::to_string(role), .role = role};
}

// Returns the row's path, with the name of a job or a box in place of NAME.
std::string path_of(const PathRights& row) {
  std::string path = row.path;
  const size_t at = path.find("NAME");
  if (at != std::string::npos) path.replace(at, 4, row.page == Page::kSetDuty ? "b" : "bert");
  return path;
}

TEST_CASE("each path leads to its own row, for GET and HEAD or for POST, and to no other") {
  std::set<Page> pages;
  for (const PathRights& row : path_rights()) {
    INFO(row.method << " " << row.path);
    CHECK(pages.insert(row.page).second);
    const std::string path = path_of(row);
    const auto found = find_path(row.method, path);
    REQUIRE(found);
    CHECK(found->row == &row);
    if (row.method != std::string("GET")) continue;
    const auto head = find_path("HEAD", path);
    REQUIRE(head);
    CHECK(head->row == &row);
  }
  CHECK(find_path("GET", "/api/v1/jobs/a%2Fb/trace")->name == "a%2Fb");
  CHECK(find_path("GET", "/api/v1/jobs/trace")->row->page == Page::kJob);
  for (const char* nothing : {"", "metrics", "/metrics/", "//", "/api/v1/jobs/", "/api/v1/nothing",
                              "/api/v1/jobs/NAME/priorities/"}) {
    const auto found = find_path("GET", nothing);
    CHECK((!found || found->row->page == Page::kJob));
  }
  CHECK_FALSE(find_path("POST", "/metrics"));
  CHECK_FALSE(find_path("POST", "/api/v1/boxes//drain"));
  CHECK_FALSE(find_path("DELETE", "/api/v1/jobs"));
}

TEST_CASE("every row of the table: operators may do all, viewers and boxes look, tenants nothing") {
  const std::set<std::string> for_viewers = {"/", "/metrics", "/healthz", "/readyz"};
  FakeSource source;
  for (const PathRights& row : path_rights()) {
    for (const tls::Role role :
         {tls::Role::kBox, tls::Role::kTenant, tls::Role::kOperator, tls::Role::kViewer}) {
      INFO(row.method << " " << row.path << " as " << tls::to_string(role));
      const bool looks = for_viewers.contains(row.path) && row.method == std::string("GET");
      const bool may = role == tls::Role::kOperator || (role != tls::Role::kTenant && looks);
      CHECK(authorise(client(role), row).ok() == may);
      // The answer follows the table.
      const std::string path = path_of(row);
      const AdminResponse response =
          answer(source, client(role),
                 {.method = row.method, .target = path, .content_type = "application/json"});
      CHECK((response.status == 403) == !may);
      if (!may) {
        CHECK_THAT(response.body,
                   Contains("pbox://rack/") && Contains(row.path) && Contains("`pboxctl keys "));
      }
    }
  }
}

TEST_CASE("a client without a role gets nothing but the remedy") {
  FakeSource source;
  const Principal stranger{
      .name = "uid 1001", .role = std::nullopt, .remedy = "add the user to the group"};
  for (const PathRights& row : path_rights()) {
    const std::string path = path_of(row);
    const auto response = answer(source, stranger, {.method = row.method, .target = path});
    CHECK(response.status == 403);
    CHECK(response.body == "uid 1001 may not use this server: add the user to the group\n");
  }
}

}  // namespace
}  // namespace pbox::admin
