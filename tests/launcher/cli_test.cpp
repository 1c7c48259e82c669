#include "launcher/cli.h"

#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher/config_file.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::launcher {
namespace {

using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;
using Arguments = std::vector<std::string>;

CommandLine parse(const Arguments& arguments) {
  return parse_command_line(arguments, [](const char*) { return nullptr; });
}

/// The message that the arguments are refused with.
std::string refusal(const Arguments& arguments) {
  try {
    parse(arguments);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "(accepted)";
}

std::string file_refusal(const std::string& toml) {
  RunConfig config;
  try {
    apply_config_text(toml, "job.toml", all_options(), config);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "(accepted)";
}

/// A flag's text, and how a file spells the same value. None is a default.
struct Example {
  std::string flag;
  std::string toml;
};

const std::map<std::string, Example>& examples() {
  static const std::map<std::string, Example> table = {
      {"model", {"a.gguf", "'a.gguf'"}},
      {"dtype", {"float32", "'float32'"}},
      {"activation-dtype", {"float32", "'float32'"}},
      {"kv-cache-dtype", {"bfloat16", "'bfloat16'"}},
      {"max-model-len", {"4096", "4096"}},
      {"max-num-seqs", {"3", "3"}},
      {"max-num-batched-tokens", {"77", "77"}},
      {"max-prefill-chunk", {"16", "16"}},
      {"block-size", {"32", "32"}},
      {"kv-cache-memory", {"1.5G", "1610612736"}},
      {"seed", {"0", "0"}},
      {"tensor-parallel-size", {"4", "4"}},
      {"comm", {"shm", "'shm'"}},
      {"device", {"cuda", "'cuda'"}},
      {"reduction", {"fast", "'fast'"}},
      {"gpu-memory-utilization", {"0.5", "0.5"}},
      {"comm-tuning", {"t.txt", "'t.txt'"}},
      {"threads", {"2", "2"}},
      {"bind", {"none", "\"none\""}},
      {"collective-timeout", {"2.5", "2.5"}},
      {"restarts", {"2", "2"}},
      {"log-level", {"debug", "'debug'"}},
      {"input-file", {"in.jsonl", "'in.jsonl'"}},
      {"output-file", {"out.jsonl", "'out.jsonl'"}},
      {"error-file", {"bad.jsonl", "'bad.jsonl'"}},
      {"output-order", {"completion", "'completion'"}},
      {"served-model-name", {"m", "'m'"}},
      {"prompt", {"", "''"}},
      {"prompt-ids", {"1,2,3", "[1, 2, 3]"}},
      {"system", {"Be brief.", "'Be brief.'"}},
      {"max-tokens", {"9", "9"}},
      {"temperature", {"0", "0"}},
      {"top-k", {"-1", "-1"}},
      {"top-p", {"0.9", "0.9"}},
      {"min-p", {"0.05", "0.05"}},
      {"repetition-penalty", {"1.1", "1.1"}},
      {"presence-penalty", {"-0.5", "-0.5"}},
      {"frequency-penalty", {"0.25", "0.25"}},
      {"stop", {"\n\n", "[\"\\n\\n\"]"}},
      {"n", {"2", "2"}},
      {"logprobs", {"5", "5"}},
      {"dump-logits", {"l.safetensors", "'l.safetensors'"}},
      {"dump-hidden", {"h.safetensors", "'h.safetensors'"}},
      {"rank", {"1", "1"}},
      {"type", {"Q4_K", "'Q4_K'"}},
      {"input-len", {"7", "7"}},
      {"output-len", {"8", "8"}},
      {"num-prompts", {"9", "9"}},
      {"range-ratio", {"0.5", "0.5"}},
      {"batch-size", {"4", "4"}},
      {"warmup", {"0", "0"}},
      {"iterations", {"1", "1"}},
      {"perplexity", {"t.txt", "'t.txt'"}},
      {"window", {"64", "64"}},
      {"stride", {"32", "32"}},
      {"debug-preempt-every", {"5", "5"}},
  };
  return table;
}

/// Arguments that a run of the option's subcommand needs besides it.
Arguments runnable(const Option& option) {
  Arguments arguments = {std::string(subcommand_name(option.used_by.front()))};
  if (option.used_by.front() == Subcommand::kQuantize) {
    arguments.insert(arguments.end(), {"in.gguf", "out.gguf"});
    return arguments;
  }
  const auto need = [&](const std::string& name, const std::string& value) {
    if (option.name != name) arguments.insert(arguments.end(), {"--" + name, value});
  };
  need("model", "m.gguf");
  if (option.used_by.front() == Subcommand::kBatch) {
    need("input-file", "i");
    need("output-file", "o");
    if (option.name == "retry-errors") arguments.push_back("--resume");
  }
  if (option.used_by.front() == Subcommand::kGenerate && option.name != "prompt-ids") need("prompt", "p");
  if (option.used_by.front() == Subcommand::kScore) need("perplexity", "t");
  if (option.name == "system") arguments.push_back("--chat");
  if (option.name == "rank") arguments.insert(arguments.end(), {"-tp", "2"});
  return arguments;
}

TEST(CommandLine, EveryOptionMeansTheSameAsFlagAndInAFile) {
  for (const Option& option : all_options()) {
    SCOPED_TRACE(option.name);
    const bool is_switch = option.kind == OptionKind::kSwitch;
    ASSERT_TRUE(is_switch || examples().contains(option.name)) << "give it an example";
    const bool is_on = option.name == "enable-prefix-caching";  // without being given: the example turns it off
    const Example example = is_switch ? Example{"", is_on ? "false" : "true"} : examples().at(option.name);

    const Arguments without = runnable(option);
    Arguments by_flag = without;
    by_flag.push_back((is_on ? "--no-" : "--") + option.name);
    if (!is_switch) by_flag.push_back(example.flag);
    const RunConfig from_flag = parse(by_flag).config;

    const test::TemporaryFolder folder;
    const std::string path = folder.write("job.toml", option.key() + " = " + example.toml + "\n");
    Arguments by_file = without;
    by_file.insert(by_file.end(), {"--config", path});
    const RunConfig from_file = parse(by_file).config;

    EXPECT_EQ(from_flag, from_file);
    RunConfig defaults;
    if (option.name != "model" && option.name != "input-file" && option.name != "output-file" &&
        !(option.name == "prompt" || option.name == "prompt-ids" || option.name == "perplexity")) {
      defaults = parse(without).config;
    }
    EXPECT_FALSE(from_flag == defaults) << "the option changes nothing";
  }
}

TEST(CommandLine, ReadsTheUsualBatchCommand) {
  const RunConfig config = parse({"batch", "-m", "m.gguf", "-tp", "4", "-i", "in", "-o", "out", "--max_model_len=100", "--resume"}).config;
  EXPECT_EQ(config.subcommand, Subcommand::kBatch);
  EXPECT_EQ(config.tensor_parallel_size, 4);
  EXPECT_TRUE(config.tensor_parallel_size_given);
  EXPECT_EQ(config.max_model_len, 100);
  EXPECT_EQ(config.input_file, "in");
  EXPECT_TRUE(config.resume);
}

TEST(CommandLine, TakesEveryFormOfTheRankCount) {
  for (const Arguments& form :
       {Arguments{"-tp", "3"}, Arguments{"-tp=3"}, Arguments{"--tensor-parallel-size", "3"}, Arguments{"--tensor_parallel_size=3"}}) {
    Arguments arguments = {"inspect", "-m", "m.gguf"};
    arguments.insert(arguments.end(), form.begin(), form.end());
    EXPECT_EQ(parse(arguments).config.tensor_parallel_size, 3) << form.front();
  }
  EXPECT_FALSE(parse({"inspect", "-m", "m.gguf"}).config.tensor_parallel_size_given);
}

TEST(CommandLine, KeepsValuesAsTheyAre) {
  const auto prompt = [](const std::string& text) {
    return parse({"generate", "-m", "m", "--prompt", text}).config.prompt.value_or("(none)");
  };
  for (const std::string text : {"", "--max_tokens", "[INST] a, b [/INST]", "{}", "-tp", "batch", "a_b=c", "\"quoted\"", "--"})
    EXPECT_EQ(prompt(text), text);
  EXPECT_EQ(parse({"generate", "-m", "m", "--prompt=--a_b"}).config.prompt, "--a_b");
  EXPECT_EQ(parse({"generate", "-m", "m", "--prompt", "p", "--stop", "[a,b]", "--stop", ""}).config.stop,
            (std::vector<std::string>{"[a,b]", ""}));
}

TEST(CommandLine, QuantizeTakesTwoFilesAndAType) {
  const RunConfig config = parse({"quantize", "in.gguf", "out.gguf", "--type", "Q4_K", "--threads", "3", "--overwrite"}).config;
  EXPECT_EQ(config.subcommand, Subcommand::kQuantize);
  EXPECT_EQ(config.model, "in.gguf");
  EXPECT_EQ(config.quantize_output, "out.gguf");
  EXPECT_EQ(config.type, "Q4_K");
  EXPECT_EQ(config.threads, 3);
  EXPECT_TRUE(config.overwrite);
  EXPECT_EQ(parse({"quantize", "--type=F16", "folder", "out.gguf"}).config.model, "folder");
  EXPECT_THAT(refusal({"quantize", "in.gguf"}), HasSubstr("lockstep quantize IN OUT"));
  const RunConfig compared = parse({"quantize", "a", "b", "--perplexity", "t", "--window", "64", "--stride", "32", "--bare-text"}).config;
  EXPECT_EQ(compared.perplexity_file, "t");
  EXPECT_EQ(compared.window, 64);
  EXPECT_THAT(refusal({"quantize", "a", "b", "--window", "64"}), HasSubstr("--window and --stride need --perplexity"));
  EXPECT_THAT(refusal({"quantize", "a", "b", "c"}), HasSubstr("'c' is not a flag"));
  EXPECT_THAT(refusal({"quantize", "a", "b", "--type", "Q3_K"}), HasSubstr("'Q3_K' is none of F32, BF16, F16, Q8_0, Q4_0, Q4_K, Q6_K"));
  EXPECT_THAT(refusal({"quantize", "a", "b", "--seed", "1"}), HasSubstr("--seed is not for lockstep quantize"));
}

TEST(CommandLine, TheLastUseOfAFlagCounts) { EXPECT_EQ(parse({"inspect", "-m", "a", "-m", "b"}).config.model, "b"); }

TEST(CommandLine, FlagsGoBeforeTheFileInAnyOrder) {
  const test::TemporaryFolder folder;
  const std::string path = folder.write("job.toml", "model = 'file.gguf'\nmax-num-seqs = 5\nresume = true\n");
  for (const Arguments& arguments : {Arguments{"batch", "-i", "i", "-o", "o", "--config", path, "-m", "flag.gguf", "--no-resume"},
                                     Arguments{"batch", "-i", "i", "-o", "o", "-m", "flag.gguf", "--no-resume", "--config", path}}) {
    const RunConfig config = parse(arguments).config;
    EXPECT_EQ(config.model, "flag.gguf");
    EXPECT_EQ(config.max_num_seqs, 5);
    EXPECT_FALSE(config.resume);
  }
}

TEST(CommandLine, NamesTheNearestFlag) {
  EXPECT_THAT(refusal({"batch", "--max-modle-len", "5"}), HasSubstr("--max-modle-len; did you mean --max-model-len?"));
  EXPECT_THAT(refusal({"batch", "--tensor-paralel-size=2"}), HasSubstr("did you mean --tensor-parallel-size?"));
  EXPECT_THAT(refusal({"batch", "--zzzzzzzzzz"}), HasSubstr("there is no flag --zzzzzzzzzz"));
  EXPECT_THAT(refusal({"batch", "--zzzzzzzzzz"}), testing::Not(HasSubstr("did you mean")));
  EXPECT_THAT(refusal({"batch", "--prompt", "x"}), HasSubstr("--prompt is not for lockstep batch"));
  EXPECT_THAT(refusal({"batch", "stray"}), HasSubstr("'stray' is not a flag"));
  EXPECT_THAT(refusal({"bacth"}), HasSubstr("did you mean batch?"));
  EXPECT_THAT(refusal({}), HasSubstr("a subcommand is missing"));
}

TEST(CommandLine, NamesTheFlagOfABadValue) {
  const auto batch = [](Arguments more) {
    Arguments arguments = {"batch", "-m", "m", "-i", "i", "-o", "o"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return refusal(arguments);
  };
  EXPECT_EQ(batch({"--threads", "two"}), "--threads: 'two' is not a whole number");
  EXPECT_EQ(batch({"--threads", "99999999999999999999"}), "--threads: '99999999999999999999' is not a whole number");
  EXPECT_EQ(batch({"-tp", "0"}), "--tensor-parallel-size: 0 is below 1");
  EXPECT_EQ(batch({"--dtype", "int8"}), "--dtype: 'int8' is none of auto, float32, float16, bfloat16");
  EXPECT_EQ(batch({"--kv-cache-memory", "12X"}), "--kv-cache-memory: '12X' is not a number of bytes, like 512M or 2G");
  EXPECT_EQ(batch({"--kv-cache-memory", "1e300"}), "--kv-cache-memory: '1e300' is not a number of bytes, like 512M or 2G");
  EXPECT_EQ(batch({"--collective-timeout", "nan"}), "--collective-timeout: 'nan' is not a number");
  EXPECT_THAT(batch({"--block-size", "17"}), HasSubstr("--block-size 17: it must be a multiple of 16"));
  EXPECT_THAT(batch({"--device", "cpu", "--reduction", "fast"}), HasSubstr("--reduction fast needs GPUs"));
  EXPECT_THAT(batch({"--comm", "self", "-tp", "2"}), HasSubstr("--comm self"));
  EXPECT_THAT(batch({"--resume", "--overwrite"}), HasSubstr("--resume and --overwrite"));
  EXPECT_THAT(batch({"--error-file", "./o"}), HasSubstr("--output-file and --error-file are the same file"));
  EXPECT_THAT(batch({"-o", "i"}), HasSubstr("--input-file and --output-file are the same file"));
  EXPECT_THAT(batch({"--threads"}), HasSubstr("--threads"));
  EXPECT_EQ(refusal({"generate", "-m", "m", "--prompt-ids", "1,,2"}), "--prompt-ids: '1,,2' is not a list of whole numbers");
  EXPECT_THAT(refusal({"generate", "-m", "m"}), HasSubstr("--prompt or --prompt-ids is missing"));
}

TEST(CommandLine, ReadsByteSuffixes) {
  const auto bytes = [](const std::string& text) { return std::get<std::int64_t>(values_from_text(OptionKind::kBytes, text).front()); };
  EXPECT_EQ(bytes("4096"), 4096);
  EXPECT_EQ(bytes("512M"), 512 << 20);
  EXPECT_EQ(bytes("2GiB"), std::int64_t{2} << 30);
  EXPECT_EQ(bytes("3kb"), 3072);
  EXPECT_THROW(bytes("G"), UsageError);
  EXPECT_THROW(bytes(""), UsageError);
  EXPECT_THROW(bytes("-1M"), UsageError);
}

TEST(CommandLine, ShowsHelpAndVersion) {
  EXPECT_THAT(parse({"--help"}).help.value_or(""), HasSubstr("batch"));
  const std::string help = parse({"batch", "--help"}).help.value_or("");
  EXPECT_THAT(help, HasSubstr("--tensor-parallel-size"));
  EXPECT_THAT(help, testing::Not(HasSubstr("debug-preempt-every")));
  EXPECT_TRUE(parse({"--version"}).version);
}

TEST(CommandLine, ScoreMeasuresATextOrAnswersRequests) {
  const auto score = [](Arguments more) {
    Arguments arguments = {"score", "-m", "m"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return refusal(arguments);
  };
  EXPECT_EQ(score({"--perplexity", "t", "--window", "8", "--stride", "8"}), "(accepted)");
  EXPECT_EQ(score({"-i", "i", "-o", "o", "--overwrite", "--bare-text"}), "(accepted)");
  EXPECT_THAT(score({}), HasSubstr("give --perplexity, or --input-file and --output-file"));
  EXPECT_THAT(score({"-i", "i"}), HasSubstr("--output-file is missing"));
  EXPECT_THAT(score({"-o", "o"}), HasSubstr("--input-file is missing"));
  EXPECT_THAT(score({"-i", "i", "-o", "o", "--perplexity", "t"}), HasSubstr("one at a time"));
  EXPECT_THAT(score({"-i", "i", "-o", "o", "--window", "9"}), HasSubstr("need --perplexity"));
  EXPECT_THAT(score({"--perplexity", "t", "--window", "1"}), HasSubstr("scores nothing"));
  EXPECT_THAT(score({"--perplexity", "t", "--window", "8", "--stride", "9"}), HasSubstr("leaves tokens out"));
  EXPECT_EQ(score({"-i", "i", "-o", "o", "--resume", "--restarts", "2"}), "(accepted)");
  EXPECT_THAT(score({"-i", "i", "-o", "o", "--resume", "--overwrite"}), HasSubstr("contradict each other"));
  EXPECT_THAT(score({"--perplexity", "t", "--resume"}), HasSubstr("--resume and --restarts are for --input-file"));
  EXPECT_THAT(score({"-i", "i", "-o", "o", "--retry-errors"}), HasSubstr("--retry-errors is not for lockstep score"));
}

TEST(CommandLine, BenchCommNeedsNoModel) {
  EXPECT_EQ(parse({"bench", "comm", "-tp", "2"}).config.bench, BenchKind::kComm);
  EXPECT_EQ(parse({"bench", "-tp", "2", "comm"}).config.bench, BenchKind::kComm);
  EXPECT_EQ(parse({"bench", "-m", "a"}).config.bench, BenchKind::kOverview);
  EXPECT_EQ(parse({"bench", "latency", "-m", "a"}).config.bench, BenchKind::kLatency);
  EXPECT_EQ(parse({"bench", "throughput", "-m", "a", "--range-ratio", "0.5"}).config.bench, BenchKind::kThroughput);
  EXPECT_THAT(refusal({"bench", "comm", "-tp", "1"}), HasSubstr("bench comm needs two ranks or more"));
  EXPECT_EQ(refusal({"bench", "comm", "comm", "-tp", "2"}), "'comm' is not a flag");
  EXPECT_EQ(refusal({"batch", "comm"}), "'comm' is not a flag");
}

TEST(CommandLine, TakesTheInstructionSetFromTheEnvironment) {
  const auto environment = [](const char* name) { return std::string_view(name) == "LOCKSTEP_ISA" ? "avx2" : nullptr; };
  EXPECT_EQ(parse_command_line(Arguments{"inspect", "-m", "m"}, environment).config.instruction_set, "avx2");
}

TEST(ConfigFile, NamesFileLineAndKey) {
  EXPECT_EQ(file_refusal("\nmax_modle_len = 5\n"), "job.toml:2: max_modle_len: there is no such key; did you mean max_model_len?");
  EXPECT_EQ(file_refusal("threads = 'two'\n"), "job.toml:1: threads: it must be a whole number, not a text");
  EXPECT_EQ(file_refusal("threads = 2.0\n"), "job.toml:1: threads: it must be a whole number, not a number");
  EXPECT_EQ(file_refusal("\n\nresume = 1\n"), "job.toml:3: resume: it must be true or false, not a whole number");
  EXPECT_EQ(file_refusal("model = ['a', 'b']\n"), "job.toml:1: model: it must be a text, not a list");
  EXPECT_EQ(file_refusal("stop = ['a', 1]\n"), "job.toml:1: stop: it must be a list of texts, not a whole number");
  EXPECT_EQ(file_refusal("tensor_parallel_size = 0\n"), "job.toml:1: tensor_parallel_size: 0 is below 1");
  EXPECT_EQ(file_refusal("[model]\n"), "job.toml:1: model: it must be a text, not a table");
  EXPECT_THAT(file_refusal("model = \n"), HasSubstr("job.toml:1: "));
  EXPECT_THAT(file_refusal("a = 1\na = 2\n"), HasSubstr("job.toml:2: "));
}

TEST(ConfigFile, RefusesWhatIsDeep) {
  const auto repeated = [](std::size_t count, std::string_view piece) {
    std::string text;
    for (std::size_t i = 0; i < count; ++i) text += piece;
    return text;
  };
  // The tree of tables that so many dots make takes more stack than there is when it goes.
  EXPECT_EQ(file_refusal("threads = 1\n" + repeated(400'000, "a.") + "a = 1\n"), "job.toml:2: the line has more than 512 dots");
  EXPECT_EQ(file_refusal("[" + repeated(513, "a.") + "a]\n"), "job.toml:1: the line has more than 512 dots");
  EXPECT_THAT(file_refusal("thr\xc3\xa9"
                           "ads = 1\n"),
              HasSubstr("job.toml:1: "));
  EXPECT_THAT(file_refusal("threads = 1\xc3\xa9\n"), HasSubstr("job.toml:1: "));
  EXPECT_EQ(file_refusal("prompt = 'caf\xc3\xa9'  # \xc3\xa9\n"), "(accepted)");
  EXPECT_THAT(file_refusal("stop = " + repeated(100'000, "[")), HasSubstr("job.toml:1: "));
  // The deepest that gets by: every list and every line at its limit.
  const std::string key = repeated(512, "a.") + "a = ";
  EXPECT_THAT(file_refusal(repeated(7, key + "[\n{") + key + "1" + repeated(7, "}]")), HasSubstr("there is no such key"));
}

TEST(ConfigFile, AMissingFileIsNamed) {
  EXPECT_THAT(refusal({"inspect", "--config", "/nowhere/x.toml"}), HasSubstr("--config /nowhere/x.toml: the file can not be opened"));
  EXPECT_THAT(refusal({"inspect", "--config", testing::TempDir()}), HasSubstr("--config"));
}

TEST(ConfigFile, KeysOfOtherSubcommandsAreFine) {
  RunConfig config;
  apply_config_text("output_len = 3\nstop = 'one'\nkv_cache_memory = '1M'\n", "job.toml", all_options(), config);
  EXPECT_EQ(config.output_len, 3);
  EXPECT_EQ(config.stop, std::vector<std::string>{"one"});
  EXPECT_EQ(config.kv_cache_memory, 1u << 20);
}

}  // namespace
}  // namespace lockstep::launcher
