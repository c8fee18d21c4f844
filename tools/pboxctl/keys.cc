#include <algorithm>
#include <boost/program_options.hpp>
#include <cctype>
#include <ctime>
#include <filesystem>
#include <iostream>
#include <sstream>

#include "nic/tls/credentials.h"
#include "tools/pboxctl/key_command.h"
#include "tools/pboxctl/key_files.h"

namespace pboxctl {
namespace {

namespace options = boost::program_options;
namespace tls = pbox::tls;

constexpr int64_t kDaySeconds = 24 * 3600;
constexpr unsigned kDaysDefault = 90;

options::options_description keys_options() {
  options::options_description description("Options");
  description.add_options()("help,h", "print this text");
  description.add_options()("cluster", options::value<std::string>()->value_name("NAME"),
                            "init: name of the cluster");
  description.add_options()(
      "out", options::value<std::string>()->value_name("PATH"),
      "folder for the new keys, created if missing; token: file for the token");
  description.add_options()(
      "ranks", options::value<std::string>()->default_value("*")->value_name("FIRST-LAST"),
      "job, token: ranks that may use the keys; *: all");
  description.add_options()("hosts",
                            options::value<std::string>()->default_value("")->value_name("LIST"),
                            "box: additional names and IP addresses of the box for browsers, curl "
                            "and Prometheus, separated by ','");
  description.add_options()(
      "days", options::value<unsigned>()->value_name("N"),
      "days until the keys expire, at most 3650; default: 90, and 3650 for an authority");
  description.add_options()("force", "replace existing keys");
  description.add_options()("issue",
                            "rotate, step 2: the new authority signs all keys from now on");
  description.add_options()("finish", "rotate, step 3: the former authority is no longer trusted");
  return description;
}

int make_authority(const options::variables_map& given, const Words& more) {
  if (more.size() != 2) return complain("keys", "init takes one folder: keys init FOLDER");
  const std::string cluster = given.contains("cluster") ? given["cluster"].as<std::string>() : "";
  if (!tls::is_identity_name(cluster)) {
    return complain("keys", "--cluster is '" + cluster +
                                "'; give a name of 1 to 64 letters, digits, '-', '_' and '.'");
  }
  const unsigned days = days_of(given, kAuthorityDays);
  if (days == 0) return kUsage;
  const auto authority = tls::make_authority(cluster, validity_of(days));
  const auto written = write_authority(more[1], authority, given.contains("force"));
  if (!written) return fail_keys(written.error().message);
  const auto facts = tls::authority_facts(authority.certificate);
  std::cout << more[1] << ": authority of cluster " << cluster << ", until "
            << tls::utc_text(facts->expires_unix_s) << "\nauthority " << facts->fingerprint
            << "\nKeep " << more[1] << "/ca-key.pem away from boxes and workers.\n";
  return kDone;
}

// Returns the identity that the words name in this cluster, as a URI.
std::string uri_of(const options::variables_map& given, const Words& more,
                   const std::string& cluster) {
  const std::string root = "pbox://" + cluster + "/" + more[0];
  if (more[0] == "box") return root + "/" + more[2];
  if (more[0] != "job" && more[0] != "token") return root;
  const size_t slash = std::min(more[2].find('/'), more[2].size());
  const std::string glob = more[2].substr(std::min(slash + 1, more[2].size()));
  return "pbox://" + cluster + "/tenant/" + more[2].substr(0, slash) + "/job/" + glob + "/rank/" +
         given["ranks"].as<std::string>();
}

// Returns the names under which HTTP clients reach a box: its own, and those of --hosts.
pbox::Result<std::vector<std::string>> hosts_of(const options::variables_map& given,
                                                const tls::Identity& identity) {
  const auto& list = given["hosts"].as<std::string>();
  const auto wrong = [](const std::string& what) {
    return pbox::Error{pbox::ErrorCode::kInvalidArgument, "--hosts " + what};
  };
  if (identity.role != tls::Role::kBox) {
    if (!list.empty()) return wrong("is for boxes");
    return std::vector<std::string>();
  }
  std::vector<std::string> hosts = {identity.box};
  std::istringstream items(list);
  for (std::string host; std::getline(items, host, ',');) {
    const bool is_plain = !host.empty() && std::all_of(host.begin(), host.end(), [](char c) {
      return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_' || c == '.' ||
             c == ':';
    });
    if (!is_plain) return wrong("has the item '" + host + "'; give names or IP addresses");
    hosts.push_back(host);
  }
  return hosts;
}

int issue(const options::variables_map& given, const Words& more) {
  const unsigned days = days_of(given, kDaysDefault);
  if (days == 0) return kUsage;
  if (!given.contains("out"))
    return complain("keys",
                    "name the folder of the new keys, or the file of the token, with --out");
  const auto authority = read_authority(more[1]);
  if (!authority) return fail_keys(authority.error().message);
  const auto facts = tls::authority_facts(authority->certificate);
  if (!facts) return fail_keys(more[1] + "/ca.pem " + facts.error().message);
  const auto identity = tls::parse_identity(uri_of(given, more, facts->cluster));
  if (!identity) return complain("keys", identity.error().message);
  const auto validity = validity_of(days);
  if (validity.to_unix_s > facts->expires_unix_s) {
    return fail_keys("--days is " + std::to_string(days) + ", but the authority expires on " +
                     tls::utc_text(facts->expires_unix_s) +
                     "; give fewer days, or make a new authority");
  }
  const auto hosts = hosts_of(given, *identity);
  if (!hosts) return complain("keys", hosts.error().message);
  const auto keys = tls::issue(*authority, {.uris = {tls::to_uri(*identity)},
                                            .hosts = *hosts,
                                            .serves = identity->role == tls::Role::kBox,
                                            .validity = validity});
  if (!keys) return fail_keys("ca.pem and ca-key.pem in " + more[1] + " " + keys.error().message);
  const auto trust = read_trust(more[1]);
  if (!trust) return fail_keys(trust.error().message);
  const std::string& out = given["out"].as<std::string>();
  const auto write = more[0] == "token" ? write_token : write_keys;
  const auto written = write(out, *trust, *keys, given.contains("force"));
  if (!written) return fail_keys(written.error().message);
  std::cout << out << ": " << tls::to_uri(*identity) << ", until "
            << tls::utc_text(validity.to_unix_s) << '\n';
  return kDone;
}

int show(const Words& more) {
  if (more.size() != 2) return complain("keys", "show takes one folder or token: keys show PATH");
  if (std::filesystem::exists(more[1] + "/ca-key.pem")) return show_authority(more[1]);
  const auto credentials = tls::Credentials::load(more[1]);
  if (!credentials) return fail_keys(credentials.error().message);
  const int64_t left_s = (*credentials)->expires_unix_s() - std::time(nullptr);
  std::cout << "identity  " << tls::to_uri((*credentials)->identity()) << "\nexpires   "
            << tls::utc_text((*credentials)->expires_unix_s()) << ", in "
            << (left_s + kDaySeconds - 1) / kDaySeconds << " days\nauthority "
            << (*credentials)->authority_fingerprints() << '\n';
  return kDone;
}

int keys(const options::variables_map& given, const Words& more) {
  if (more.empty())
    return complain(
        "keys",
        "name a subcommand: init, box, job, token, operator, viewer, show, rotate or revoke");
  if (more[0] == "init") return make_authority(given, more);
  if (more[0] == "show") return show(more);
  if (more[0] == "rotate") return rotate_authority(given, more);
  if (more[0] == "revoke") return revoke_keys(more);
  const bool is_named = more[0] == "box" || more[0] == "job" || more[0] == "token";
  if (!is_named && more[0] != "operator" && more[0] != "viewer") {
    return complain("keys", "'" + more[0] +
                                "' is unknown; write init, box, job, token, operator, viewer, "
                                "show, rotate or revoke");
  }
  if (more.size() != (is_named ? 3 : 2)) {
    const std::string name = more[0] == "box" ? " NAME" : is_named ? " TENANT/JOB" : "";
    return complain(
        "keys", "write keys " + more[0] + " FOLDER" + name + ", where FOLDER is the authority's");
  }
  return issue(given, more);
}

}  // namespace

int fail_keys(const std::string& what) {
  std::cerr << "pboxctl keys: " << what << '\n';
  return kFailed;
}

unsigned days_of(const options::variables_map& given, unsigned fallback) {
  const unsigned days = given.contains("days") ? given["days"].as<unsigned>() : fallback;
  if (days >= 1 && days <= kAuthorityDays) return days;
  complain("keys",
           "--days is " + std::to_string(days) + "; give 1 to " + std::to_string(kAuthorityDays));
  return 0;
}

tls::Validity validity_of(unsigned days) {
  const int64_t now = std::time(nullptr);
  return {.from_unix_s = now - kClockSkewSeconds, .to_unix_s = now + days * kDaySeconds};
}

const Command kKeys = {
    "keys",
    "init|box|job|token|operator|viewer|show|rotate|revoke FOLDER [NAME] [options]",
    "make keys for boxes, workers and people, renew and revoke them, or show what they are for",
    "Makes the keys with which boxes, workers and people prove who they are on control "
    "connections.\n\n"
    "  keys init FOLDER --cluster NAME       an authority, which signs all other keys\n"
    "  keys box FOLDER NAME --out KEYS       for the box of that name ([security] keys = KEYS)\n"
    "  keys job FOLDER TENANT/JOB --out KEYS for workers of the tenant's jobs (PBOX_KEYS=KEYS)\n"
    "  keys token FOLDER TENANT/JOB --out FILE the same as one line of text (PBOX_KEYS=FILE)\n"
    "  keys operator FOLDER --out KEYS       for a person who operates boxes\n"
    "  keys viewer FOLDER --out KEYS         for a person or program that only reads\n"
    "  keys show KEYS                        identity, expiry and the authority's fingerprint\n"
    "  keys show FOLDER                      the authority, and the state of its replacement\n"
    "  keys revoke FOLDER KEYS               revoke keys, such as stolen ones: writes crl.pem for "
    "the "
    "boxes\n"
    "  keys rotate FOLDER [KEYS ...]         replace the authority, step 1 of 3: it gets a "
    "successor\n"
    "  keys rotate FOLDER --issue [KEYS ...] step 2: the successor signs keys from now on\n"
    "  keys rotate FOLDER --finish [KEYS ...] step 3: the former authority is no longer trusted\n\n"
    "FOLDER is the authority's. KEYS is a folder of keys; for show and revoke it may be a token's "
    "FILE.\nA token is one line of text, which fits a secret store for single values. JOB may "
    "contain * and ?;\nquote it. The workers' job name is then TENANT/JOB. Private keys and tokens "
    "can be read by their\nowner only. Existing keys are kept, unless --force is given.\n\n"
    "Each step of rotate says what to do before the next one, and may be repeated. KEYS are your\n"
    "copies of folders of keys: they get what the step changes, and step 2 renews their keys. "
    "Tokens\nare made again: keys token ... --force.",
    keys_options,
    keys,
    Command::More::kKeys};

}  // namespace pboxctl
