"""Models with all that the table of a projection may have."""

from decimal import Decimal

from django.db import models


class Region(models.Model):
    """What rows of a projection refer to."""

    name = models.CharField(max_length=20, unique=True)

    def __str__(self) -> str:
        return self.name


class CustomerTotal(models.Model):
    """A row per customer, whose name is the primary key."""

    customer = models.CharField(max_length=64, primary_key=True)
    orders = models.IntegerField(default=0)
    total = models.DecimalField(max_digits=12, decimal_places=2, default=Decimal(0))
    seen: "models.JSONField[list[int], list[int]]" = models.JSONField(default=list)
    region = models.ForeignKey(Region, models.CASCADE, null=True, related_name="totals")
    first_at = models.DateTimeField(auto_now_add=True)
    changed_at = models.DateTimeField(auto_now=True)

    class Meta:
        indexes = (models.Index(fields=["-total"], name="customertotal_total"),)
        constraints = (
            models.CheckConstraint(condition=models.Q(orders__gte=0), name="customertotal_orders"),
            models.UniqueConstraint(fields=["region"], condition=models.Q(orders=-1), name="customertotal_never"),
        )

    def __str__(self) -> str:
        return self.customer


class Counter(models.Model):
    """A row per code, with a primary key that the database counts."""

    code = models.IntegerField(unique=True)
    events = models.IntegerField(default=0)
    names = models.CharField(max_length=2_000, default="", blank=True)

    def __str__(self) -> str:
        return str(self.code)


class Dated(models.Model):
    """A model without a field that could hold a key."""

    at = models.DateField()


class Together(models.Model):
    """A key of two columns."""

    pk = models.CompositePrimaryKey("one", "two")
    one = models.IntegerField()
    two = models.IntegerField()
