import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import io.confluent.parallelconsumer.ParallelConsumerOptions;
import io.confluent.parallelconsumer.ParallelConsumerOptions.ProcessingOrder;
import io.confluent.parallelconsumer.ParallelStreamProcessor;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * Confluent's Parallel Consumer as a contender: handles what is in a topic, in order per key, with 128
 * handlers at a time.
 *
 * <p>Arguments: servers, topic, group, events, milliseconds that a handler takes. Prints one line of JSON:
 * the seconds from the first event until all are handled, and how often a key went backwards.
 */
public final class ParallelConsumer {
    private static final int CONCURRENCY = 128;
    private static final long DEADLINE_SECONDS = 120;

    public static void main(String[] arguments) throws Exception {
        String topic = arguments[1];
        long events = Long.parseLong(arguments[3]);
        long work = Long.parseLong(arguments[4]);

        Map<String, Object> settings = Map.of(
                "bootstrap.servers", arguments[0],
                "group.id", arguments[2],
                "auto.offset.reset", "earliest",
                "enable.auto.commit", false);
        var consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new ByteArrayDeserializer());
        var options = ParallelConsumerOptions.<String, byte[]>builder()
                .ordering(ProcessingOrder.KEY)
                .maxConcurrency(CONCURRENCY)
                .consumer(consumer)
                .build();
        var processor = ParallelStreamProcessor.createEosStreamProcessor(options);

        var json = new ObjectMapper();
        var latest = new ConcurrentHashMap<String, Long>();
        var violations = new AtomicLong();
        var handled = new AtomicLong();
        var done = new CountDownLatch(1);

        // From the first event on: joining a group takes a new Java machine seconds.
        var started = new AtomicLong();
        processor.subscribe(List.of(topic));
        processor.poll(context -> {
            started.compareAndSet(0, System.nanoTime());
            var record = context.getSingleConsumerRecord();
            JsonNode event;
            try {
                event = json.readTree(record.value());
            } catch (Exception error) {
                throw new IllegalStateException(error);
            }
            if (work > 0) {
                pause(work);
            }
            String key = event.get("aggregate_id").asText();
            Long before = latest.put(key, record.offset());
            if (before != null && before >= record.offset()) {
                violations.incrementAndGet();
            }
            if (handled.incrementAndGet() == events) {
                done.countDown();
            }
        });
        boolean all = done.await(DEADLINE_SECONDS, TimeUnit.SECONDS);
        double seconds = (System.nanoTime() - started.get()) / 1e9;
        System.out.printf(
                "{\"seconds\": %f, \"handled\": %d, \"violations\": %d}%n", seconds, handled.get(), violations.get());
        processor.close(Duration.ofSeconds(5), io.confluent.parallelconsumer.internal.DrainingCloseable.DrainingMode.DONT_DRAIN);
        System.exit(all ? 0 : 1);
    }

    private static void pause(long milliseconds) {
        try {
            Thread.sleep(milliseconds);
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
        }
    }
}
