// The numeric contract, by equality of bytes: whole output files and dumped logits do not depend on ranks, threads, the number of sequences
// computed together, prefill chunks, instruction set, preemption, prefix caching, or a stop in the middle and a resume, also on fewer
// ranks. pairwise.csv holds rows in which each pair of values occurs; LOCKSTEP_CONTRACT=full runs the whole product instead
// (scripts/contract.sh).

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include <gtest/gtest.h>

#include "engine/io/batch_job.h"
#include "engine/text/chat_template.h"
#include "tests/support/session_run.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_model.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using Row = std::map<std::string, std::string>;  // axis -> value

const std::vector<std::pair<std::string, std::vector<std::string>>> kAxes{
    {"ranks", {"1", "2", "3", "4", "5", "8", "9"}},
    {"threads", {"1", "2"}},
    {"sequences", {"1", "8", "32"}},
    {"chunk", {"1", "16", "512"}},
    {"isa", {"portable", "avx2", "avx512", "avx512vnni"}},
    {"preempt", {"no", "yes"}},
    {"prefix", {"no", "yes"}},
    {"resume", {"no", "same", "fewer"}},
    {"weights", {"F32", "BF16", "F16", "Q8_0", "Q4_0", "Q4_1"}},
    {"kv", {"F32", "F16", "BF16", "int8", "fp8"}},
};

std::string environment(const char* name, const char* otherwise) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : otherwise;
}

bool possible(const Row& row) { return row.at("ranks") != "1" || row.at("resume") != "fewer"; }

std::string describe(const Row& row) {
  std::string text;
  for (const auto& [axis, values] : kAxes) text += axis + "=" + row.at(axis) + " ";
  return text;
}

std::vector<Row> pairwise_rows() {
  std::ifstream file(LOCKSTEP_CONTRACT_TABLE);
  std::vector<std::string> names;
  std::vector<Row> rows;
  for (std::string line; std::getline(file, line);) {
    std::istringstream cells(line);
    std::vector<std::string> values;
    for (std::string cell; std::getline(cells, cell, ',');) values.push_back(cell);
    if (names.empty()) {
      names = values;
      continue;
    }
    Row row;
    for (std::size_t i = 0; i < names.size(); ++i) row[names[i]] = values.at(i);
    rows.push_back(row);
  }
  return rows;
}

/// The whole product, for one type of weights and one of the cache (what is equal is then all that may not matter).
std::vector<Row> all_rows() {
  std::vector<Row> rows{
      {{"weights", environment("LOCKSTEP_CONTRACT_WEIGHTS", "Q4_1")}, {"kv", environment("LOCKSTEP_CONTRACT_KV", "F16")}}};
  for (const auto& [axis, values] : kAxes) {
    if (rows.front().contains(axis)) continue;
    std::vector<Row> longer;
    for (const Row& row : rows) {
      for (const std::string& value : values) {
        longer.push_back(row);
        longer.back()[axis] = value;
      }
    }
    rows = std::move(longer);
  }
  std::erase_if(rows, [](const Row& row) { return !possible(row); });
  return rows;
}

/// The level of that name, or the best of this machine where it lacks that one.
device::Isa isa_for(const std::string& name) {
  const auto supported = device::supported_isas();
  const auto found = std::find_if(supported.begin(), supported.end(), [&](device::Isa isa) { return device::isa_name(isa) == name; });
  return found != supported.end() ? *found : supported.back();
}

void write_requests(const fs::path& path) {
  std::ofstream file(path);
  const std::string text = "The quick brown fox jumps over the lazy dog, and nobody asked it to. ";
  for (int i = 0; i < 32; ++i) {
    const std::size_t begin = i % 4 == 3 ? 0 : static_cast<std::size_t>(i);  // some begin alike
    const std::string prompt = text.substr(begin, static_cast<std::size_t>(1 + (i * 7) % 38));
    nlohmann::ordered_json line{{"custom_id", "r" + std::to_string(i)}, {"max_tokens", 3 + i % 9}};
    if (i % 5 == 4) {
      line["messages"] = {{{"role", "user"}, {"content", prompt}}};
    } else {
      line["prompt"] = prompt;
    }
    switch (i % 6) {
      case 0: line["temperature"] = 0; break;
      case 1: line["top_p"] = 0.9; break;
      case 2:
        line["n"] = 2;
        line["top_k"] = 20;
        break;
      case 3:
        line["repetition_penalty"] = 1.2;
        line["presence_penalty"] = 0.5;
        line["min_p"] = 0.01;
        break;
      case 4:
        line["temperature"] = 0;
        if (!line.contains("messages")) line["logprobs"] = 3;
        break;
      default:
        line["stop"] = {"e", "qu"};
        line["seed"] = i;
        break;
    }
    file << line.dump() << '\n';
  }
}

struct Outcome {
  std::string output;                      // the whole file
  std::vector<std::vector<float>> logits;  // of one long prompt
};

class Contract : public testing::Test {
 protected:
  void SetUp() override { write_requests(folder_.path() / "requests.jsonl"); }

  fs::path model_of(const std::string& weights) {
    const fs::path path = folder_.path() / (weights + ".gguf");
    if (!fs::exists(path)) test::write_tiny_gguf(path, device::dtype_from_name(weights).value());
    return path;
  }

  test::RunSetup setup_of(const Row& row, int ranks) {
    test::RunSetup setup;
    setup.ranks = ranks;
    setup.threads = std::stoul(row.at("threads"));
    setup.isa = isa_for(row.at("isa"));
    setup.session.model = model_of(row.at("weights"));
    setup.session.kv_dtype = device::dtype_from_name(row.at("kv"));  // nothing for 8 bits
    for (const device::KvQuantisation quantised : {device::KvQuantisation::kInt8, device::KvQuantisation::kFloat8}) {
      if (row.at("kv") == device::name_of(quantised)) setup.session.kv_quantised = quantised;
    }
    setup.session.kv_cache_bytes = 64u << 20;
    setup.session.block_size = row.at("threads") == "1" ? 16 : 32;
    setup.session.max_num_seqs = std::stoul(row.at("sequences"));
    setup.session.prefill_chunk = std::stoul(row.at("chunk"));
    setup.session.preempt_every = row.at("preempt") == "yes" ? 3 : 0;
    setup.session.prefix_caching = row.at("prefix") == "yes";
    return setup;
  }

  /// Runs the batch file; with `stop_at_half` it ends in the middle, as on SIGTERM.
  engine::BatchResult run_file(const test::RunSetup& setup, const fs::path& output, bool resume, bool stop_at_half, Outcome& outcome) {
    engine::BatchResult result;
    test::with_session(setup, [&](engine::Session& session) {
      const text::ChatTemplate chat_template(session.model().chat_template);
      engine::BatchOptions options;
      options.input_file = folder_.path() / "requests.jsonl";
      options.output_file = output;
      options.resume = resume;
      options.seed = 42;
      options.start_time = 1'700'000'000;
      options.max_in_flight = 2 * setup.session.max_num_seqs;
      options.model_hash = session.model().model_hash;
      const engine::BatchModel model{
          .engine = session.engine(),
          .tokenizer = session.tokenizer(),
          .render_chat = [&](const nlohmann::ordered_json& variables, std::int64_t now) { return chat_template.render(variables, now); },
          .defaults = {},
          .name = "tiny",
          .system_fingerprint = "contract"};
      std::atomic<bool> stop{false};
      engine::BatchHooks hooks;
      hooks.stop = &stop;
      hooks.progress = [&](const engine::BatchProgress& progress) { stop = stop_at_half && progress.done >= 16; };
      result = engine::run_batch(options, model, hooks);
      if (!result.interrupted) outcome.logits = test::prompt_logits(session, long_prompt());
    });
    return result;
  }

  static std::vector<std::int32_t> long_prompt() {
    std::vector<std::int32_t> ids;
    for (int i = 0; i < 150; ++i) ids.push_back(3 + (i * 37) % 250);  // more than two attention spans
    return ids;
  }

  Outcome run(const Row& row) {
    const int ranks = std::stoi(row.at("ranks"));
    const fs::path output = folder_.path() / "answers.jsonl";
    for (const char* suffix : {"", ".partial", ".run.json"}) fs::remove(output.string() + suffix);
    Outcome outcome;
    if (row.at("resume") != "no") {
      const auto half = run_file(setup_of(row, ranks), output, false, true, outcome);
      EXPECT_TRUE(half.interrupted) << describe(row);
      EXPECT_FALSE(fs::exists(output)) << describe(row);
    }
    const int ranks_at_end = row.at("resume") == "fewer" ? ranks - 1 : ranks;
    const auto result = run_file(setup_of(row, ranks_at_end), output, row.at("resume") != "no", false, outcome);
    EXPECT_EQ(result.answered, 32u) << describe(row);
    EXPECT_GE(result.resumed, row.at("resume") == "no" ? 0u : 16u) << describe(row);
    std::ifstream file(output, std::ios::binary);
    outcome.output.assign(std::istreambuf_iterator<char>(file), {});
    return outcome;
  }

  /// One rank, one thread, everything at once, best instruction set: what all other ways must equal. Weights and KV type are part of the
  /// computation.
  const Outcome& baseline(const Row& row) {
    const auto [found, fresh] = baselines_.try_emplace(row.at("weights") + "/" + row.at("kv"));
    if (fresh) {
      Row plain = row;
      for (const auto& [axis, value] : Row{{"ranks", "1"},
                                           {"threads", "1"},
                                           {"sequences", "32"},
                                           {"chunk", "512"},
                                           {"isa", "avx512vnni"},
                                           {"preempt", "no"},
                                           {"prefix", "no"},
                                           {"resume", "no"}}) {
        plain[axis] = value;
      }
      found->second = run(plain);
      EXPECT_EQ(std::count(found->second.output.begin(), found->second.output.end(), '\n'), 32);
      EXPECT_EQ(found->second.logits.size(), long_prompt().size());
    }
    return found->second;
  }

 private:
  test::TemporaryFolder folder_;
  std::map<std::string, Outcome> baselines_;
};

TEST(ContractTable, EveryPairOfValuesOccurs) {
  const auto rows = pairwise_rows();
  for (std::size_t a = 0; a < kAxes.size(); ++a) {
    for (std::size_t b = a + 1; b < kAxes.size(); ++b) {
      std::set<std::pair<std::string, std::string>> seen;
      for (const Row& row : rows) seen.insert({row.at(kAxes[a].first), row.at(kAxes[b].first)});
      for (const std::string& x : kAxes[a].second) {
        for (const std::string& y : kAxes[b].second) {
          const bool is_impossible = kAxes[a].first == "ranks" && x == "1" && kAxes[b].first == "resume" && y == "fewer";
          EXPECT_TRUE(is_impossible || seen.contains({x, y})) << kAxes[a].first << "=" << x << " " << kAxes[b].first << "=" << y;
        }
      }
    }
  }
}

TEST_F(Contract, OutputFilesAndLogitsAreTheSameBytes) {
  const bool full = environment("LOCKSTEP_CONTRACT", "") == "full";
  const std::size_t part = std::stoul(environment("LOCKSTEP_CONTRACT_PART", "1")) - 1;
  const std::size_t parts = std::stoul(environment("LOCKSTEP_CONTRACT_PARTS", "1"));
  const auto rows = full ? all_rows() : pairwise_rows();
  ASSERT_FALSE(rows.empty());
  ASSERT_LT(part, parts);
  for (std::size_t number = part; number < rows.size(); number += parts) {
    const Row& row = rows[number];
    if (full && number / parts % 100 == 0) std::printf("row %zu of %zu\n", number, rows.size()), std::fflush(stdout);
    const Outcome& expected = baseline(row);
    const Outcome got = run(row);
    EXPECT_EQ(got.output, expected.output) << describe(row);
    EXPECT_TRUE(got.logits == expected.logits) << "logits: " << describe(row);
    if (HasFailure()) return;  // the first row that differs says enough
  }
}

}  // namespace
}  // namespace lockstep
