// Tokens: what they hold, and which are refused.
#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>

#include "tests/support/key_folder.h"

namespace pbox::test::token_test {
namespace {

using Catch::Contains;

std::string refusal(const std::string& path) {
  const auto loaded = tls::Credentials::load(path);
  return loaded ? "" : loaded.error().message;
}

}  // namespace

TEST_CASE("a token holds the same keys as the folder of which it was made") {
  const auto signer = authority();
  const KeyFolder folder(signer, "pbox://rack/tenant/acme/job/*/rank/0-3");
  const bool has_list = GENERATE(false, true);
  if (has_list) folder.write("crl.pem", "a list");
  folder.write("token", folder.token() + (GENERATE(false, true) ? "\n" : ""));
  const auto made = tls::read_key_files(folder.path());
  const auto read = tls::read_key_files(folder.path() + "/token");
  REQUIRE(made.ok());
  REQUIRE(read.ok());
  CHECK(read->authorities == made->authorities);
  CHECK(read->certificate == made->certificate);
  CHECK(read->key == made->key);
  CHECK(read->revocations == made->revocations);
  CHECK(read->revocations.has_value() == has_list);
  CHECK(read->name_of("key.pem") == "key.pem in the token " + folder.path() + "/token");
  if (has_list) return;
  const auto credentials = tls::Credentials::load(folder.path() + "/token");
  REQUIRE(credentials.ok());
  CHECK(tls::to_uri((*credentials)->identity()) == "pbox://rack/tenant/acme/job/*/rank/0-3");
}

TEST_CASE("a token is text of the alphabet of base64url, whatever its length") {
  tls::KeyFiles files;
  const TemporaryFolder folder;
  for (size_t length = 0; length < 9; ++length) {
    files.authorities.assign(length, '\xff');
    const std::string token = tls::make_token(files);
    CHECK(
        token.find_first_not_of("pbox-token-1.ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
                                "0123456789_") == std::string::npos);
    folder.write("token", token);
    const auto read = tls::read_key_files(folder.path() + "/token");
    REQUIRE(read.ok());
    CHECK(read->authorities == files.authorities);
  }
}

TEST_CASE("a token that was cut or changed anywhere is refused") {
  const KeyFolder folder(authority(), "pbox://rack/tenant/acme/job/*/rank/*");
  const std::string token = folder.token(), path = folder.path() + "/token";
  const size_t begin = token.find('.') + 1;
  const auto check = [&](const std::string& text) {
    folder.write("token", text);
    CHECK_THAT(refusal(path), Contains(path + " is a damaged token") && Contains("keys token"));
  };
  for (size_t at = begin; at < token.size() - 1; at += 97) {
    CAPTURE(at);
    check(token.substr(0, at));
    std::string changed = token;
    changed[at] = changed[at] == 'x' ? 'y' : 'x';
    check(changed);
    for (const char odd : {'=', '+', '/', ' ', '\0', '\xc3'}) {
      changed[at] = odd;
      check(changed);
    }
  }
  check(token + token);
}

TEST_CASE("a file that is no token is refused with the command that makes one") {
  const KeyFolder folder(authority(), "pbox://rack/tenant/acme/job/*/rank/*");
  CHECK_THAT(refusal(folder.path() + "/key.pem"),
             Contains("is neither a folder of keys nor a token") && Contains("pboxctl keys token"));
  folder.write("empty", "");
  CHECK_THAT(refusal(folder.path() + "/empty"), Contains("nor a token"));
}

TEST_CASE("a token that others may read is refused, with its mode and the remedy") {
  const KeyFolder folder(authority(), "pbox://rack/tenant/acme/job/*/rank/*");
  const std::string path = folder.path() + "/token";
  folder.write("token", folder.token());
  CHECK(refusal(path).empty());
  for (const mode_t mode : {0660, 0604, 0620, 0602, 0644, 0610}) {
    REQUIRE(chmod(path.c_str(), mode) == 0);
    CHECK_THAT(refusal(path), Contains("chmod 600 " + path));
  }
  REQUIRE(chmod(path.c_str(), 0400) == 0);
  CHECK(refusal(path).empty());
  // Kubernetes mounts a secret with this mode for a user of its group.
  REQUIRE(chmod(path.c_str(), 0440) == 0);
  CHECK(refusal(path).empty() == (geteuid() == 0));
}

TEST_CASE("an expired token is refused with the time at which it expired") {
  const auto signer = authority();
  const KeyFolder folder(signer, KeyFolder::order("pbox://rack/tenant/acme/job/*/rank/*", -60),
                         signer.certificate);
  folder.write("token", folder.token());
  CHECK_THAT(refusal(folder.path() + "/token"),
             Contains("cert.pem in the token " + folder.path() + "/token expired on 20"));
}

}  // namespace pbox::test::token_test
