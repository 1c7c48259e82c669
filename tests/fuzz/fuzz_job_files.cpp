// What a job finds when it is resumed: OUTPUT.run.json is a record or one UsageError, and of OUTPUT.partial the whole answers are kept and
// nothing else, which a second look confirms.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "engine/io/journal.h"
#include "engine/io/run_record.h"
#include "engine/io/usage_error.h"
#include "engine/score/score_job.h"
#include "tests/support/temporary_folder.h"

using namespace lockstep;

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

std::string bytes_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void recover(const std::filesystem::path& path, const engine::ReadJournalLine& first, const engine::ReadJournalLine& second, bool drop) {
  std::vector<engine::AnswerKey> keys;
  {
    engine::Journal journal(path, first);
    keys = journal.recover(drop);
    require(journal.num_answered() + journal.num_failed() == keys.size());
  }
  const std::string kept = bytes_of(path);
  require(static_cast<std::size_t>(std::count(kept.begin(), kept.end(), '\n')) == keys.size());
  engine::Journal journal(path, second);
  require(journal.recover(drop) == keys);
  require(bytes_of(path) == kept);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const test::TemporaryFolder folder;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    engine::read_run_record(folder.write("out.run.json", text));
  } catch (const engine::UsageError&) {
  }
  recover(folder.write("batch.partial", text), engine::read_batch_answer, engine::read_batch_answer, size % 2 == 1);
  recover(folder.write("score.partial", text), engine::score_lines_reader(), engine::score_lines_reader(), false);
  return 0;
}
